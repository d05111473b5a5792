// Package clock sets the wall clock of the machine forth and back under pods, and puts it back. Its tests run
// in the virtual machine, whose clock is nobody else's (make vm), and are skipped elsewhere.
package clock
