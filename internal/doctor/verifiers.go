package doctor

import (
	"context"
	"fmt"
	"strings"
)

// Verifiers is what the daemon says of its image verifiers.
type Verifiers struct {
	Directory string
	Programs  []string
	Failure   string // why no image can be verified, and so none is pulled
}

// checkVerifiers says who decides which images may be pulled, and why none can be.
func checkVerifiers(_ context.Context, cfg Config) Finding {
	if cfg.Daemon == nil {
		return good("not checked: berthd does not answer")
	}
	v := cfg.Daemon.Verifiers
	switch {
	case v == nil:
		return good("none: image_verifier.bin_dir")
	case v.Failure != "":
		return poor("no image can be pulled: "+v.Failure, "Mend it: the next pull looks again.\n"+
			"To pull images without a check, set image_verifier.bin_dir = \"\", and then: systemctl reload berthd")
	}
	return good(fmt.Sprintf("%d in %s: %s", len(v.Programs), v.Directory, strings.Join(v.Programs, ", ")))
}
