// Package fileattr reads, compares and copies the attributes of files: owner, mode and extended attributes. It also
// finds the directory of a path that a given user may not enter.
package fileattr
