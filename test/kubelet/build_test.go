package kubelet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"berth/test/node"
)

const (
	kubeletPackage = "k8s.io/kubernetes/cmd/kubelet"
	versionPackage = "k8s.io/component-base/version"
)

// buildKubelet is the path of a kubelet built from the module build/. One that was built from the same go.mod and go.sum
// is taken from the user's cache directory.
func buildKubelet(ctx context.Context) (string, error) {
	root, err := node.ModuleRoot()
	if err != nil {
		return "", err
	}
	module := filepath.Join(root, "test", "kubelet", "build")
	sum := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", err
		}
		sum.Write(data)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "berth", "kubelet", hex.EncodeToString(sum.Sum(nil))[:16])
	path := filepath.Join(dir, "kubelet")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	version, err := goTool(ctx, module, "list", "-mod=readonly", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
	if err != nil {
		return "", err
	}
	fmt.Printf("building a kubelet %s, once: some minutes\n", version)
	partial := fmt.Sprintf("%s.%d", path, os.Getpid())
	defer os.Remove(partial)
	// A kubelet that does not know its version does not start.
	ldflags := fmt.Sprintf("-s -w -X %s.gitVersion=%s", versionPackage, version)
	_, err = goTool(ctx, module, "build", "-mod=readonly", "-trimpath", "-ldflags", ldflags, "-o", partial, kubeletPackage)
	if err != nil {
		return "", err
	}
	return path, os.Rename(partial, path)
}

func goTool(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "nice", append([]string{"go"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", args[0], err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}
