package kubernetes

import (
	"cmp"
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

const versionPackage = "k8s.io/component-base/version"

const (
	containerd = "github.com/containerd/containerd/v2/cmd"
	// Those snapshotters need libraries in C, or a kernel that has them.
	containerdTags = "no_btrfs,no_devmapper,no_zfs"
)

// Program is what can be built.
type Program struct {
	name, pkg string
	test      bool // the package's tests, as a program
	static    bool // without the C library, for images
	module    string
	tags      string
}

// The modules, below that of Berth: of Kubernetes' own programs, and of CoreDNS, containerd, runc, gVisor and
// stargz-snapshotter, whose dependencies would change Kubernetes'.
const (
	own     = "test/kubelet/build"
	coreDNS = "test/cluster/coredns"
	peer    = "test/cluster/containerd"
	runc    = "test/cluster/runc"
	gvisor  = "test/life/gvisor"
	stargz  = "test/life/stargz"
)

// The programs. NodeTests are the specs of a node, which bring an API server and etcd along; Ginkgo runs them in
// several processes. Agnhost and SampleDevicePlugin are for images.
var (
	Kubelet            = Program{name: "kubelet", pkg: "k8s.io/kubernetes/cmd/kubelet"}
	SampleDevicePlugin = Program{name: "sample-device-plugin", pkg: "k8s.io/kubernetes/test/images/sample-device-plugin"}
	NodeTests          = Program{name: "e2e_node.test", pkg: "k8s.io/kubernetes/test/e2e_node", test: true}
	Agnhost            = Program{name: "agnhost", pkg: "k8s.io/kubernetes/test/images/agnhost", static: true}
	Ginkgo             = Program{name: "ginkgo", pkg: "github.com/onsi/ginkgo/v2/ginkgo"}
	// SampleAPIServer is an API server that a cluster's own is extended by.
	SampleAPIServer = Program{name: "sample-apiserver", pkg: "k8s.io/sample-apiserver", static: true}
	// EtcdImage is Etcd for an image.
	EtcdImage = Program{name: "etcd-static", pkg: "go.etcd.io/etcd/server/v3", static: true}

	Etcd              = Program{name: "etcd", pkg: "go.etcd.io/etcd/server/v3"}
	APIServer         = Program{name: "kube-apiserver", pkg: "k8s.io/kubernetes/cmd/kube-apiserver"}
	ControllerManager = Program{name: "kube-controller-manager", pkg: "k8s.io/kubernetes/cmd/kube-controller-manager"}
	Scheduler         = Program{name: "kube-scheduler", pkg: "k8s.io/kubernetes/cmd/kube-scheduler"}
	Proxy             = Program{name: "kube-proxy", pkg: "k8s.io/kubernetes/cmd/kube-proxy"}
	Kubectl           = Program{name: "kubectl", pkg: "k8s.io/kubernetes/cmd/kubectl"}
	CoreDNS           = Program{name: "coredns", pkg: "github.com/coredns/coredns", static: true, module: coreDNS}
	// Containerd and its shim are for a node that has them in Berth's place.
	Containerd     = Program{name: "containerd", pkg: containerd + "/containerd", module: peer, tags: containerdTags}
	ContainerdShim = Program{
		name: "containerd-shim-runc-v2", pkg: containerd + "/containerd-shim-runc-v2", module: peer, tags: containerdTags,
	}
	// Runc is for that containerd, in place of the system's. It is linked with libseccomp.
	Runc = Program{name: "runc", pkg: "github.com/opencontainers/runc", module: runc, tags: "seccomp"}
	// Runsc is gVisor's runtime, RunscShim its shim for containerd.
	Runsc     = Program{name: "runsc", pkg: "gvisor.dev/gvisor/runsc", module: gvisor, static: true}
	RunscShim = Program{name: "containerd-shim-runsc-v1", pkg: "gvisor.dev/gvisor/shim", module: gvisor, static: true}
	// Stargz is the stargz snapshotter.
	Stargz = Program{name: "stargz", pkg: ".", module: stargz, static: true}
	// Tests are the specs of a cluster.
	Tests = Program{name: "e2e.test", pkg: "k8s.io/kubernetes/test/e2e", test: true}
)

// Name is the program's.
func (p Program) Name() string { return p.name }

// BuildContainerd is the directory of a containerd 2 and its shim.
func BuildContainerd(ctx context.Context) (dir string, err error) {
	var path string
	for _, p := range []Program{ContainerdShim, Containerd} {
		if path, err = p.Build(ctx); err != nil {
			return "", err
		}
	}
	return filepath.Dir(path), nil
}

// Version is the version of Kubernetes that Build builds.
func Version(ctx context.Context) (string, error) {
	module, err := moduleDir(own)
	if err != nil {
		return "", err
	}
	return goTool(ctx, module, nil, "list", "-mod=readonly", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
}

// Directory is where the Go command keeps the source of Kubernetes.
func Directory(ctx context.Context) (string, error) {
	module, err := moduleDir(own)
	if err != nil {
		return "", err
	}
	return goTool(ctx, module, nil, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
}

// ldflags tell a program its version. A kubelet that does not know it does not start, and a spec of test/e2e asks for
// the two parts of it.
func ldflags(version string) string {
	flags := fmt.Sprintf("-s -w -X %s.gitVersion=%s", versionPackage, version)
	if parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3); len(parts) == 3 {
		flags += fmt.Sprintf(" -X %[1]s.gitMajor=%[2]s -X %[1]s.gitMinor=%[3]s", versionPackage, parts[0], parts[1])
	}
	return flags
}

// Build is the path of a program. One that was built from the same go.mod and go.sum, with the same flags, comes from
// the user's cache directory.
func (p Program) Build(ctx context.Context) (string, error) {
	module, err := moduleDir(cmp.Or(p.module, own))
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	names := []string{"go.mod", "go.sum"}
	if p.pkg == "." {
		names = append(names, "main.go") // its version is not in go.mod
	}
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", err
		}
		sum.Write(data)
	}
	sum.Write([]byte(ldflags("v1.2.3"))) // their form: the version is in go.mod
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "berth", "kubelet", hex.EncodeToString(sum.Sum(nil))[:16])
	path := filepath.Join(dir, p.name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	version, err := Version(ctx)
	if err != nil {
		return "", err
	}
	fmt.Printf("building %s, once: some minutes\n", p.pkg)
	partial := fmt.Sprintf("%s.%d", path, os.Getpid())
	defer os.Remove(partial)
	args := []string{"build"}
	if p.test {
		args = []string{"test", "-c", "-vet=off"}
	}
	args = append(args, "-mod=readonly", "-tags="+p.tags, "-trimpath", "-ldflags", ldflags(version), "-o", partial, p.pkg)
	var env []string
	if p.static {
		env = append(env, "CGO_ENABLED=0")
	}
	if _, err = goTool(ctx, module, env, args...); err != nil {
		return "", err
	}
	return path, os.Rename(partial, path)
}

func moduleDir(module string) (string, error) {
	root, err := node.ModuleRoot()
	return filepath.Join(root, filepath.FromSlash(module)), err
}

func goTool(ctx context.Context, dir string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "nice", append([]string{"go"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "GOWORK=off"), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", args[0], err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}
