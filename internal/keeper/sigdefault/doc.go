// Package sigdefault restores the default action of signals that were ignored when the keeper was started, before Go's
// runtime reads them. Child processes inherit ignored signals, so every container would ignore them too. For example,
// make ignores a signal of glibc's in all programs that it starts.
package sigdefault

// #cgo CFLAGS: -Wall -O2
import "C"
