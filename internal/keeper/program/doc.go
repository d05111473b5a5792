// Package program is the keeper's C as a program of its own: what a container's process is before its own
// program (package stage), and the init of a pod (package podinit). packaging/build.sh compiles it and the keeper
// has it inside. So it starts at an address that is another for each process, and as fast as before: to relocate
// all of the keeper's program would take each exec a millisecond.
//
// A keeper that is built in another way has the same code in its own program, and uses that.
package program
