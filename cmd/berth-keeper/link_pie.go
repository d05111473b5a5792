//go:build pie

package main

// With -buildmode=pie, of which Go's build tags know nothing: static as in link.go, and at an address that is another
// for each process.

// The compiler does not record macros: the one that protects is checked here.

// #cgo LDFLAGS: -static-pie
// #ifndef _FORTIFY_SOURCE
// #error "compiled without the protections of packaging/build.sh"
// #endif
import "C"
