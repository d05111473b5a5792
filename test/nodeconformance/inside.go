package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/registrytest"
	"berth/test/conformance/images"
	"berth/test/node"
)

const (
	// work is where the run's own directory is inside, since /tmp is another there.
	work = "/mnt/n"
	// hostname and hostAddress are the machine's, as the kubelet tells the API server.
	hostname    = "node"
	hostAddress = "198.51.100.10"
	// handler is the runtime handler that specs about RuntimeClasses use.
	handler = "test-handler"
	// runtimeCgroup is the runtime's own, for the suite's view of the machine's use.
	runtimeCgroup = "/runtime"
	// securityFiles is the mount point of securityfs, which a kernel with CONFIG_SECURITYFS has.
	securityFiles = "/sys/kernel/security"
)

// tunables are the sysctls that a kubelet sets for the whole machine, with the values that it wants. It finds these in
// place of the machine's own, and sets none.
var tunables = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// inside runs the suite in namespaces of its own, whose mounts it changes at will.
func inside(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, settingsFile))
	if err != nil {
		return err
	}
	var s settings
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	// The cache may lie in a directory that is another inside.
	built, err := images.Load(filepath.Join(s.Cache, "node-images"))
	if err != nil {
		return err
	}
	if err := furnish(dir, s.Results, s.SystemBus); err != nil {
		return err
	}
	if err := noteLacking(filepath.Join(work, "results")); err != nil {
		return err
	}
	return run(ctx, s, built)
}

// mount is a call of mount(2) that says what it was about.
func mount(from, to, kind string, flags uintptr, options string) error {
	if err := syscall.Mount(from, to, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s at %s (%s %s): %w", from, to, kind, options, err)
	}
	return nil
}

// furnish gives these namespaces what a machine has: /proc and /sys of theirs, directories that the suite writes to, an
// interface with an address, and a name.
func furnish(dir, results string, systemBus bool) error {
	hierarchies, err := mountinfo.GetMounts(func(info *mountinfo.Info) (skip, stop bool) {
		hierarchy := info.FSType == "cgroup" || info.FSType == "cgroup2"
		return !hierarchy || !strings.HasPrefix(info.Mountpoint, "/sys/fs/cgroup"), false
	})
	if err != nil {
		return err
	}
	for _, own := range []string{"tmp", "kubelet", "log", "results", "suite"} {
		if err := os.Mkdir(filepath.Join(dir, own), 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(filepath.Join(dir, "tmp"), 0o777|os.ModeSticky); err != nil {
		return err
	}
	for name, value := range tunables {
		path := filepath.Join(dir, "tunables", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
	}
	hosts := fmt.Sprintf("127.0.0.1 localhost\n%s %s\n", hostAddress, hostname)
	if err := os.WriteFile(filepath.Join(dir, "hosts"), []byte(hosts), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "resolv.conf"), []byte("nameserver 192.0.2.53\n"), 0o644); err != nil {
		return err
	}
	// What others mount later is not seen here. What the kubelet mounts is for its containers too, so all is shared here.
	if err := mount("", "/", "", syscall.MS_SHARED|syscall.MS_REC, ""); err != nil {
		return err
	}
	steps := []error{
		mount("tmpfs", "/mnt", "tmpfs", 0, "mode=755"),
		os.Mkdir(work, 0o755),
		mount(dir, work, "", syscall.MS_BIND, ""),
		mount(results, filepath.Join(work, "results"), "", syscall.MS_BIND, ""),
		mount("proc", "/proc", "proc", 0, ""),
		mount("sysfs", "/sys", "sysfs", 0, ""),
	}
	if err := errors.Join(steps...); err != nil {
		return err
	}
	if err := mountCgroups(hierarchies); err != nil {
		return err
	}
	if _, err := os.Stat(securityFiles); err == nil { // of AppArmor
		if err := mount("securityfs", securityFiles, "securityfs", 0, ""); err != nil {
			return err
		}
	}
	for name := range tunables {
		if err := mount(filepath.Join(work, "tunables", name), "/proc/sys/"+name, "", syscall.MS_BIND, ""); err != nil {
			return err
		}
	}
	if err := os.MkdirAll("/var/lib/kubelet", 0o755); err != nil {
		return err
	}
	for at, own := range map[string]string{
		"/tmp": "tmp", "/var/lib/kubelet": "kubelet", "/var/log": "log", "/etc/hosts": "hosts",
	} {
		if err := mount(filepath.Join(work, own), at, "", syscall.MS_BIND, ""); err != nil {
			return err
		}
		if err := mount("", at, "", syscall.MS_SHARED, ""); err != nil {
			return err
		}
	}
	const dbus = "/run/dbus"
	bus := filepath.Join(work, "dbus") // beside the /run that hides the machine's
	if systemBus {
		if err := os.Mkdir(bus, 0o755); err != nil {
			return err
		}
		if err := mount(dbus, bus, "", syscall.MS_BIND, ""); err != nil {
			return err
		}
	}
	if err := mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	if systemBus {
		if err := os.Mkdir(dbus, 0o755); err != nil {
			return err
		}
		if err := mount(bus, dbus, "", syscall.MS_BIND, ""); err != nil {
			return err
		}
	}
	if err := mount("", "/run", "", syscall.MS_SHARED, ""); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(hostname)); err != nil {
		return fmt.Errorf("name these namespaces: %w", err)
	}
	return makeInterface()
}

// mountCgroups mounts the hierarchies again, so that the cgroups of these namespaces are what is seen of them.
func mountCgroups(hierarchies []*mountinfo.Info) error {
	if len(hierarchies) != 1 {
		if err := mount("tmpfs", "/sys/fs/cgroup", "tmpfs", 0, "mode=755"); err != nil {
			return err
		}
	}
	for _, h := range hierarchies {
		if err := os.MkdirAll(h.Mountpoint, 0o755); err != nil {
			return err
		}
		options := ""
		if h.FSType == "cgroup" {
			var names []string
			for name := range strings.SplitSeq(h.VFSOptions, ",") {
				if name != "rw" && name != "ro" {
					names = append(names, name)
				}
			}
			options = strings.Join(names, ",")
		}
		if err := mount(h.FSType, h.Mountpoint, h.FSType, 0, options); err != nil {
			return err
		}
	}
	return nil
}

// run starts a runtime and the suite, and fails where the runtime then leaves a trace of any pod.
func run(ctx context.Context, s settings, built images.Images) (err error) {
	programs := filepath.Join(work, programsDir)
	for name, value := range map[string]string{
		"PATH": programs + ":" + os.Getenv("PATH"), "TMPDIR": "/tmp", node.EnvBinaries: programs,
	} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	registry, err := registrytest.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, registry.Close()) }()
	if err := built.Push(registry); err != nil {
		return err
	}
	o := node.Options{Dir: work, Registry: registry, Pods: 300}
	const containerd = "/run/containerd/containerd.sock" // where a kubelet's cAdvisor looks for it
	start, process := node.StartContainerd, "containerd"
	if s.Runtime == "berth" {
		o.Config = fmt.Sprintf("containerd_address = %q\n", containerd)
		o.Tables = "[runtimes." + handler + "]\ntype = \"builtin\"\n"
		start, process = node.Start, "berthd"
	}
	if s.Runtime != "berth" {
		runc, err := exec.LookPath("runc")
		if err != nil {
			return err
		}
		o.Handlers = map[string]string{handler: runc}
	}
	n, err := start(ctx, o)
	if err != nil {
		return err
	}
	defer func() {
		for _, log := range n.Logs() {
			data, _ := os.ReadFile(log) // containerd has no keeper
			err = errors.Join(err, os.WriteFile(filepath.Join(work, "results", filepath.Base(log)), data, 0o644))
		}
		err = errors.Join(err, n.Stop())
	}()
	if s.Runtime != "berth" {
		if err := os.Symlink(n.Socket, containerd); err != nil {
			return err
		}
	}
	// Once as a mirror and once as the registry itself: containerd 1.6 reads no hosts.toml that names a server alone.
	if err := registrytest.Mirrors(n.HostsDir, images.Hosts, registry, registry); err != nil {
		return err
	}
	if err := moveRuntime(n); err != nil {
		return err
	}
	for name := range built {
		image := &cri.ImageSpec{Image: images.Hosts[0] + "/" + name}
		if _, err := n.Images.PullImage(ctx, &cri.PullImageRequest{Image: image}); err != nil {
			return fmt.Errorf("pull %s: %w", name, err)
		}
	}
	if err := suite(ctx, s, n, process); err != nil {
		return err
	}
	if err := n.RemoveAll(ctx); err != nil {
		return fmt.Errorf("remove the pods that the suite has left: %w", err)
	}
	left, err := n.Settled(time.Minute)
	if err == nil && left.Count() > 0 && !n.Containerd {
		err = fmt.Errorf("the runtime leaves behind:\n%s", left)
	}
	return err
}

// moveRuntime puts the runtime into a cgroup of its own, as a machine's units are.
func moveRuntime(n *node.Node) error {
	roots, err := node.CgroupMounts()
	if err != nil {
		return err
	}
	pids := []int{n.PID()}
	if keeper, ok := n.KeeperPID(); ok {
		pids = append(pids, keeper)
	}
	for _, root := range roots {
		if err := makeCgroup(root, runtimeCgroup); err != nil {
			return err
		}
		for _, pid := range pids {
			procs := filepath.Join(root, runtimeCgroup, "cgroup.procs")
			if err := os.WriteFile(procs, []byte(strconv.Itoa(pid)), 0); err != nil {
				return fmt.Errorf("move the runtime: %w", err)
			}
		}
	}
	return nil
}

// writeConfiguration writes what the suite gives its kubelet, and what it expects of the system.
func writeConfiguration(dir string, n *node.Node) error {
	config := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		// As the suite's own default, as far as it says.
		"cgroupDriver": "cgroupfs", "cgroupRoot": "/", "podCIDR": n.PodCIDR.String(), "volumeStatsAggPeriod": "10s",
		"fileCheckFrequency": "10s", "evictionPressureTransitionPeriod": "30s", "serializeImagePulls": false,
		"evictionHard": map[string]string{
			"memory.available": "250Mi", "nodefs.available": "2%", "nodefs.inodesFree": "2%", "imagefs.available": "2%",
		},
		"evictionMinimumReclaim": map[string]string{"nodefs.available": "1%", "nodefs.inodesFree": "1%"},
		// What this machine needs.
		"systemCgroups": "/system",
		"failCgroupV1":  false, "failSwapOn": false, "oomScoreAdj": 0, "resolvConf": filepath.Join(work, "resolv.conf"),
		"volumePluginDir": filepath.Join(work, "plugins"), "imageGCHighThresholdPercent": 100,
	}
	files := map[string]any{
		"kubelet.json": config,
		"system.json":  map[string]any{"os": "Linux", "kernelSpec": map[string]any{"versions": []string{".*"}}},
	}
	for name, content := range files {
		data, err := json.Marshal(content)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// suite runs the specs. That some fail is no error: the report says so.
func suite(ctx context.Context, s settings, n *node.Node, process string) error {
	dir, results := filepath.Join(work, "suite"), filepath.Join(work, "results")
	if err := writeConfiguration(dir, n); err != nil {
		return err
	}
	const program = "e2e_node.test"
	for _, name := range []string{program, "kubelet"} { // the program looks for a kubelet beside itself
		if err := os.Symlink(filepath.Join(work, programsDir, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	pid := filepath.Join(work, "runtime.pid")
	if err := os.WriteFile(pid, []byte(strconv.Itoa(n.PID())), 0o644); err != nil {
		return err
	}
	args := []string{
		"--procs", strconv.Itoa(s.Procs), "--no-color", "-v", "--timeout", s.Limit.String(),
		"--seed", strconv.FormatInt(s.Seed, 10), "--json-report", reportFile, "--output-dir", results,
	}
	for flag, value := range map[string]string{"--focus": s.Focus, "--skip": s.Skip, "--label-filter": s.Labels} {
		if value != "" {
			args = append(args, flag, value)
		}
	}
	args = append(args, "./"+program, "--",
		"--container-runtime-endpoint", n.Address,
		"--container-runtime-process-name", process, "--container-runtime-pid-file", pid,
		"--kubelet-config-file", filepath.Join(dir, "kubelet.json"), "--system-spec-name", "relaxed",
		"--system-spec-file", filepath.Join(dir, "system.json"), "--prepull-images=false", "--report-dir", results,
		"--server-start-timeout", node.Patience(2*time.Minute).String())
	// The configuration has no field for it.
	args = append(args, "--kubelet-flags", "--runtime-cgroups="+runtimeCgroup)
	if s.Gates != "" {
		args = append(args, "--feature-gates", s.Gates, "--service-feature-gates", s.Gates)
	}
	log, err := os.Create(filepath.Join(results, "suite.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, filepath.Join(work, programsDir, "ginkgo"), args...)
	cmd.Dir = dir
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	cmd.Stdout = log
	if s.Verbose {
		cmd.Stdout = io.MultiWriter(log, os.Stdout)
	}
	cmd.Stderr = cmd.Stdout
	err = cmd.Run()
	var failed *exec.ExitError
	if errors.As(err, &failed) && ctx.Err() == nil {
		if _, statErr := os.Stat(filepath.Join(results, reportFile)); statErr == nil {
			return nil
		}
	}
	return err
}
