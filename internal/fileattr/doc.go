// Package fileattr reads, compares and copies what a file carries beside its content: owner, mode and extended
// attributes. It also says which directory of a path these keep somebody from passing.
package fileattr
