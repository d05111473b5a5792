// Package docs has the pages that programs read.
package docs

import _ "embed"

// Migrating is migrating.md: what each key of containerd's and CRI-O's configuration is in Berth. `berth migrate` gives
// the reasons that stand there.
//
//go:embed migrating.md
var Migrating string
