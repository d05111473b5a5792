// Package migrate changes the runtime of a node from containerd or CRI-O to Berth, and back. It translates the
// configuration of the other runtime, gives a reason for each key that it cannot translate, and finds the images of the
// other runtime. It records the files that it has written, so that Revert can restore the earlier ones. It changes
// nothing of the other runtime.
package migrate
