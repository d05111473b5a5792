//go:build !amd64

package main

// int80 is for processors that have two lists of system calls.
func int80() { select {} }
