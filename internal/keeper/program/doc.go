// Package program is the keeper's C code as a small program of its own. A container's process runs it before the
// container's own program (package stage), and so does a pod's init process (package podinit) and a process that stands
// for a container of a sandbox (package proxy). packaging/build.sh compiles the program and embeds it in the keeper. It
// starts at a random address, and quickly: relocating the whole keeper would take a millisecond for each exec.
//
// A keeper that is built without this program has the same code in its own binary, and uses that.
package program
