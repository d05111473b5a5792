// Package logpump brings what containers write into their log files, in the format of the CRI, and to attached clients.
//
// Each line is `<RFC 3339 time> <stdout|stderr> <F|P> <content>`; P marks a piece of a line that goes on in the next
// record of the same stream. A Log is one container's file and its clients; a Pump moves one stream into it, on Go's
// poller: it takes a buffer only when there is something to read, so that an idle container costs two goroutines and no
// buffer. Nothing here ever makes the container wait longer than a write to the file takes.
//
// Pumps and clients can be stopped in the middle of a line, saved, and started again by another image of the program.
package logpump
