//go:build embedprogram

package program

import _ "embed"

//go:embed program_amd64.bin
var file string
