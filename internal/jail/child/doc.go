// Package child is the program that parses what nobody has checked: it confines itself further than its jail has,
// does the work of one role, says how it went, and ends.
//
// When it begins it is already in namespaces of its own, without the host's files, network and processes,
// has a user ID that nobody else has, the role's capabilities alone, and no way to gain others (package jail).
// Here it gives up what a process can give up by itself: memory, threads and files beyond its limits, core dumps,
// and all system calls but those that its role makes. Nothing hostile is read before that.
package child
