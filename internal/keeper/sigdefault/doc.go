// Package sigdefault gives the signals that the keeper was started with ignored their default action back, before Go's
// runtime takes note of them. What a process ignores its children ignore too, so every container would have it from
// whoever started the keeper: from make, for one, which ignores a signal of glibc's own in all that it starts.
package sigdefault

// #cgo CFLAGS: -Wall -O2
import "C"
