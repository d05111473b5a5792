//go:build pie

package main

// With -buildmode=pie, of which Go's build tags know nothing: static as in link.go, and at an address that is another
// for each process.

// #cgo LDFLAGS: -static-pie
import "C"
