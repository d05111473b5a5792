// Package logpump brings what containers write into their log files, in the format of the CRI, and to attached clients.
//
// Each line is `<RFC 3339 time> <stdout|stderr> <F|P> <content>`; P marks a piece of a line that goes on in the next
// record of the same stream. A Log is one container's file and its clients; a Pump moves one stream into it, on Go's
// poller. It reads into memory that outlives this process, where somebody holds its descriptors (Pump.Held),
// together with how much of it is in the log: see buffer. An idle container costs two goroutines and a page for each.
// Nothing here ever makes the container wait longer than a write to the file takes.
//
// Pumps and clients can be stopped in the middle of a line, saved, and started again by the program that takes the
// place of this one.
package logpump
