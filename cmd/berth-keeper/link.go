//go:build !pie

package main

// The pod's init is this program in an empty root, where no dynamic loader is: however it is built, it is static.

// #cgo LDFLAGS: -static
import "C"
