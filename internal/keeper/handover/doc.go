// Package handover passes the state of a keeper, with all its descriptors, to a new version of the program that is
// executed in the same process.
//
// The state is JSON in a memfd. An environment variable has the number of this descriptor. All descriptors keep their
// numbers: their close-on-exec flag is removed right before the execve, and set again in the new program. The two
// programs may have different versions, so fields of the state are only added, and their meaning and key never change.
package handover
