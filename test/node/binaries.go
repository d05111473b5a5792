package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
)

// EnvBinaries names a directory that holds berthd, berth-keeper, berth-unpack and berth already built.
const EnvBinaries = "BERTH_BIN"

// EnvCgroupDriver names the cgroup driver of nodes whose options name none: auto (also where it is not set),
// cgroupfs or systemd.
const EnvCgroupDriver = "BERTH_CGROUP_DRIVER"

// EnvSetup names what sets containers up on nodes whose options do not say: stage (also where it is not set),
// or libcontainer.
const EnvSetup = "BERTH_SETUP"

// EnvMountNamespace is the mount_namespace of nodes whose options do not say: node (also where it is not set), or own,
// which takes shared mounts (unshare -m, mount --make-rshared /).
const EnvMountNamespace = "BERTH_MOUNT_NAMESPACE"

var built struct {
	sync.Mutex
	dir  string
	made bool // dir is ours to remove
}

// Binaries is the directory that holds berthd, berth-keeper, berth-unpack and berth: $BERTH_BIN, or a build
// of this module that is made once per process. Cleanup removes the build.
func Binaries(ctx context.Context) (string, error) {
	built.Lock()
	defer built.Unlock()
	if built.dir != "" {
		return built.dir, nil
	}
	if dir := os.Getenv(EnvBinaries); dir != "" {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return "", err
		}
		built.dir = dir
		return dir, nil
	}
	root, err := ModuleRoot()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "berth-bin-")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(root, "packaging", "build.sh"), dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.Join(fmt.Errorf("build the programs: %w\n%s", err, out), os.RemoveAll(dir))
	}
	built.dir, built.made = dir, true
	return dir, nil
}

// Cleanup removes the build that Binaries made, if any. No node may run any more.
func Cleanup() error {
	built.Lock()
	defer built.Unlock()
	if !built.made {
		return nil
	}
	dir := built.dir
	built.dir, built.made = "", false
	return os.RemoveAll(dir)
}

// ModuleRoot is the directory that holds this module's go.mod.
func ModuleRoot() (string, error) {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		return "", errors.New("the module's directory is unknown: built with -trimpath")
	}
	root := filepath.Dir(filepath.Dir(filepath.Dir(file)))
	data, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(string(data), "module berth\n") {
		return "", fmt.Errorf("%s is not the module's directory", root)
	}
	return root, nil
}
