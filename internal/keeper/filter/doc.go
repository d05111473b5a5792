// Package filter compiles seccomp profiles to the programs that the kernel loads, once for each profile.
//
// libcontainer compiles a profile in each process that it confines, which costs 13 ms of processor time and more. Here
// it does so in a process of its own, in which the load is caught and the program written out in place of being loaded.
// So the program is libcontainer's to the byte, with all that it adds to what libseccomp makes.
package filter
