// Package fileattr reads, compares and copies what a file carries beside its content: owner, mode and extended attributes.
package fileattr
