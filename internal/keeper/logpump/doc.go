// Package logpump copies the output of containers to their log files, in the format of the CRI, and to attached
// clients.
//
// Each line of a log is `<RFC 3339 time> <stdout|stderr> <F|P> <content>`. P marks a part of a line that continues in
// the next record of the same stream. A Log is the file and the attached clients of one container. A Pump copies one
// stream to a Log, and waits with Go's poller. The pump reads into shared memory of which other processes hold
// descriptors (Pump.Held), so the memory outlives this process. The memory also says which part of it is in the log
// already: see buffer. An idle container costs two goroutines, with a page each.
//
// A container waits, once its pipe is full, for writes to its log file; for its log's rate, if output over that rate
// waits (Log.Limit); and for memory, if the kernel has none.
//
// Pumps and clients can be stopped in the middle of a line, saved, and started again by the program that replaces this
// one.
package logpump
