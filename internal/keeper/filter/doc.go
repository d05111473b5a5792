// Package filter compiles seccomp profiles to the programs that the kernel loads, once for each profile.
//
// libcontainer compiles a profile in each process that it confines, which takes 13 ms or more of processor time. Here
// libcontainer's code runs in a process of its own, which intercepts the load and writes the program out. So the
// program is exactly libcontainer's, including the rules that libcontainer adds to the output of libseccomp.
package filter
