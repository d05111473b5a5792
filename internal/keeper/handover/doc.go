// Package handover brings the state of a keeper, with all its descriptors, from one program to the one that takes its
// place in the same process.
//
// The state is JSON in a memfd, whose number the next program finds in its environment. The descriptors keep their
// numbers: they lose their close-on-exec flag right before the execve, and get it back in the next program. The two
// programs may be of different versions: fields of the state are added, and never change their meaning or their key.
package handover
