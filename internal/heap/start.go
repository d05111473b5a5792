package heap

import (
	"os"
	"runtime/debug"
)

// startPercent is GOGC while a program starts.
const startPercent = 400

// Starting has Go collect garbage less often until the function that it returns is called. What a program reads at its
// start stays, mostly, and each collection on the way looks at all of it. An operator's GOGC is left as it is.
func Starting() (over func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	usual := debug.SetGCPercent(startPercent)
	return func() { debug.SetGCPercent(usual) }
}
