//go:build !embedprogram

package program

// File is false where the keeper was built without the program.
func File() (string, bool) { return "", false }
