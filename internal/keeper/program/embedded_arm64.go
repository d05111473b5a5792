//go:build embedprogram

package program

import _ "embed"

//go:embed program_arm64.bin
var file string
