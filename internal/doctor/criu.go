package doctor

import (
	"cmp"
	"context"
	"os/exec"
	"strings"
)

// checkCRIU looks for the program that makes and restores checkpoints, and has it look at the kernel. A node needs it
// for nothing else.
func checkCRIU(ctx context.Context, cfg Config) Finding {
	const install = "A node needs it for checkpoints only. Install it: apt-get install criu"
	name := "criu"
	if cfg.Daemon != nil {
		name = cmp.Or(cfg.Daemon.CRIU, name)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		if name == "criu" {
			return good("none: containers cannot be checkpointed. " + install)
		}
		return poor("checkpoint.criu: "+err.Error(),
			install+",\nor set checkpoint.criu to its path, and then: systemctl reload berthd")
	}
	if !isRoot() {
		return good(path + " (not tried)")
	}
	ctx, cancel := context.WithTimeout(ctx, checkWait)
	defer cancel()
	if out, err := exec.CommandContext(ctx, path, "check").CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return poor(path+" cannot work here: "+cmp.Or(strings.TrimSpace(lines[0]), err.Error()),
			"Containers cannot be checkpointed. See all that it lacks: "+path+" check")
	}
	return good(path + " works with this kernel")
}
