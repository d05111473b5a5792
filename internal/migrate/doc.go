// Package migrate makes a node of containerd or CRI-O one of Berth, and undoes that. It translates the configuration
// of the other runtime, says of each key that it could not translate why, finds the images that the other runtime
// has, and keeps a record of the files that it has written, by which Revert puts them back. It changes nothing of the
// other runtime.
package migrate
