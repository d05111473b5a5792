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
	samplePackage  = "k8s.io/kubernetes/test/images/sample-device-plugin"
	versionPackage = "k8s.io/component-base/version"
)

// buildKubelet is the path of a kubelet built from the module build/.
func buildKubelet(ctx context.Context) (string, error) {
	module, version, err := kubernetes(ctx)
	if err != nil {
		return "", err
	}
	// A kubelet that does not know its version does not start.
	return build(ctx, module, "kubelet", kubeletPackage, fmt.Sprintf("-s -w -X %s.gitVersion=%s", versionPackage, version))
}

// buildSample is the path of Kubernetes' own sample of a device plugin.
func buildSample(ctx context.Context) (string, error) {
	module, _, err := kubernetes(ctx)
	if err != nil {
		return "", err
	}
	return build(ctx, module, "sample-device-plugin", samplePackage, "-s -w")
}

// kubernetes is the directory of the module build/, and the version of Kubernetes in it.
func kubernetes(ctx context.Context) (module, version string, err error) {
	root, err := node.ModuleRoot()
	if err != nil {
		return "", "", err
	}
	module = filepath.Join(root, "test", "kubelet", "build")
	version, err = goTool(ctx, module, "list", "-mod=readonly", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
	return module, version, err
}

// build builds a program of the module. One that was built from the same go.mod and go.sum is taken from the user's
// cache directory.
func build(ctx context.Context, module, name, pkg, ldflags string) (string, error) {
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
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	fmt.Printf("building %s, once: some minutes\n", pkg)
	partial := fmt.Sprintf("%s.%d", path, os.Getpid())
	defer os.Remove(partial)
	if _, err = goTool(ctx, module, "build", "-mod=readonly", "-trimpath", "-ldflags", ldflags,
		"-o", partial, pkg); err != nil {
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
