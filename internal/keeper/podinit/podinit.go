package podinit

// #cgo CFLAGS: -Wall -O2
import "C"
