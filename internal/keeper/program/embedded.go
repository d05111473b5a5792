//go:build embedprogram

package program

import _ "embed"

//go:embed program.bin
var file string

// File is the program.
func File() (string, bool) { return file, true }
