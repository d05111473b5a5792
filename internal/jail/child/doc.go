// Package child is the program of the confined children of berthd, which parse hostile input. A child confines itself
// further than its jail has, does the work of one role, reports the result, and ends.
//
// When the child begins, it is already in namespaces of its own, without the host's files, network and processes. It
// has a user ID that no other process has, only the capabilities of its role, and no way to gain others (package jail).
// Here it takes the remaining steps: limits of memory, threads and files, no core dumps, and a filter of all system
// calls that its role does not make. It reads hostile input only after that.
package child
