// Package podinit is the first process of a pod that shares its PID namespace: it reaps, and ends when it is told to.
//
// It is the keeper's own binary under another name. A constructor in C recognises the name and stays in C, so that Go's
// runtime is never started and the process costs some pages.
package podinit
