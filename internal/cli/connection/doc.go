// Package connection connects the command line to a runtime's socket. If the runtime does not answer, its error says
// why and what to try.
package connection
