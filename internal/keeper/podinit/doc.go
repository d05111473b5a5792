// Package podinit is the init process of a pod whose containers share a PID namespace. It reaps processes, and ends
// when it gets a signal.
//
// It is the keeper's own binary under another name. A constructor in C recognises the name and never starts Go's
// runtime, so the process needs only some pages of memory.
package podinit
