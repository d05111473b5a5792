// Package connection is the command line's way to a runtime's socket: it dials, and it says in plain words why
// a runtime does not answer and what to try.
package connection
