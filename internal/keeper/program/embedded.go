//go:build embedprogram

package program

// File is the program, which packaging/build.sh compiles for each architecture.
func File() (string, bool) { return file, true }
