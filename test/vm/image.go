package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

//go:embed customize.sh
var customize string

// securityModule is a Linux security module that confines containers.
type securityModule struct {
	packages  []string // that the guest needs for it
	customize string   // a further script for a fresh tree
	label     string   // security.selinux of the root directory, which setfiles in a chroot takes for a cycle
	kernel    string   // parameters
}

//go:embed selinux.sh
var customizeSELinux string

var securityModules = map[string]securityModule{
	"apparmor": {packages: []string{"apparmor"}, kernel: "apparmor=1 security=apparmor"},
	"selinux": {
		packages:  []string{"policycoreutils", "selinux-policy-default", "selinux-utils"},
		customize: customizeSELinux, label: "system_u:object_r:root_t:s0", kernel: "selinux=1 security=selinux",
	},
}

// base are the packages that the guest needs to be what it is; the tests' packages come on top.
var base = []string{
	"ca-certificates", "dbus", "e2fsprogs", "iproute2", "kmod", "make", "procps", "sudo", "systemd-sysv", "udev",
	"xfsprogs",
}

// modules are loaded before the root file system is mounted; what they need is loaded before them. Without quota_v2
// a file system with quotas is not mounted.
var modules = []string{"virtio_pci", "virtio_blk", "quota_v2"}

// diskSize is the size of the root file system. The file is sparse.
const diskSize = "24G"

// image is a guest to boot.
type image struct {
	kernel, initrd, root string
	parameters           string // of the kernel
	architecture         architecture
}

// makeImage is the image with these packages of a release of Debian, made in dir unless it is there. Guests of this
// machine's architecture and release have one image, with all security modules: the kernel's parameters choose one.
func makeImage(ctx context.Context, dir, release string, packages []string, arch architecture,
	lsm securityModule) (*image, error) {
	own, err := ownRelease()
	if err != nil {
		return nil, err
	}
	if lsm.customize != "" && release != own {
		return nil, fmt.Errorf("the guest's policy is written for Debian's %s, not for %s", own, release)
	}
	installed := []securityModule{lsm}
	if !arch.foreign() && release == own { // where the programs of packages are emulated, each takes minutes
		installed = nil
		for _, name := range slices.Sorted(maps.Keys(securityModules)) {
			installed = append(installed, securityModules[name])
		}
	}
	packages = slices.Concat(base, []string{arch.kernel}, packages)
	scripts, label := []string{customize}, ""
	for _, module := range installed {
		packages = append(packages, module.packages...)
		if module.customize != "" {
			scripts = append(scripts, module.customize)
		}
		label += module.label
	}
	slices.Sort(packages)
	packages = slices.Compact(packages)
	key := sha256.Sum256([]byte(strings.Join([]string{
		release, strings.Join(packages, " "), strings.Join(modules, " "), diskSize, strings.Join(scripts, "\n"), label,
	}, "\n")))
	final := filepath.Join(dir, hex.EncodeToString(key[:])[:16])
	i := &image{
		kernel: filepath.Join(final, "vmlinuz"), initrd: filepath.Join(final, "initrd.img"),
		root:       filepath.Join(final, "root.img"),
		parameters: lsm.kernel, architecture: arch,
	}
	if _, err := os.Stat(final); err == nil {
		return i, nil
	}
	fmt.Println("making the root image, once: some minutes")
	partial, err := os.MkdirTemp("", "berth-image-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(partial)
	if err := os.Chmod(partial, 0o755); err != nil { // apt downloads as a user of its own
		return nil, err
	}
	tree := filepath.Join(partial, "tree")
	if err := bootstrap(ctx, tree, partial, release, packages, arch, scripts); err != nil {
		return nil, err
	}
	if label != "" {
		if err := unix.Setxattr(tree, "security.selinux", []byte(label), 0); err != nil {
			return nil, fmt.Errorf("label the root directory: %w", err)
		}
	}
	return i, pack(ctx, tree, final)
}

// bootstrap installs a release of Debian in tree, from where this machine's apt has its own, and runs the scripts on
// it.
func bootstrap(ctx context.Context, tree, dir, release string, packages []string, arch architecture,
	scripts []string) (err error) {
	sources, err := sourcesOf(ctx, release)
	if err != nil {
		return err
	}
	unregister, err := arch.register(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unregister()) }()
	var hooks []string
	for i, script := range scripts {
		file := filepath.Join(dir, fmt.Sprintf("customize-%d.sh", i))
		if err := os.WriteFile(file, []byte(script), 0o755); err != nil {
			return err
		}
		hooks = append(hooks, "--customize-hook="+file)
	}
	const list = "/usr/share/initramfs-tools/modules.d"
	early := fmt.Sprintf(
		`mkdir -p "$1"%[1]s "$1"/etc/initramfs-tools/conf.d && echo MODULES=list >"$1"/etc/initramfs-tools/conf.d/vm && `+
			`printf '%%s\n' %[2]s >"$1"%[1]s/vm.conf`, list, strings.Join(modules, " "))
	args := []string{
		"--quiet", "--variant=minbase", "--format=directory", "--include=" + strings.Join(packages, ","),
		"--essential-hook=" + early,
	}
	if arch.foreign() { // it looks for an emulator where Debian would have registered one
		args = append(args, "--architectures="+arch.name, "--skip=check/qemu")
	}
	args = append(args, hooks...)
	for _, protocol := range []string{"http", "https"} {
		option := "Acquire::" + protocol + "::Proxy"
		out, err := exec.CommandContext(ctx, "apt-config", "shell", "proxy", option).Output()
		if err != nil {
			return fmt.Errorf("apt-config: %w", err)
		}
		if _, quoted, ok := strings.Cut(strings.TrimSpace(string(out)), "="); ok {
			args = append(args, fmt.Sprintf("--aptopt=%s %q", option, strings.Trim(quoted, "'")))
		}
	}
	args = append(append(args, release, tree), sources...)
	return command(ctx, "mmdebstrap", args...)
}

// pack makes files to boot from of tree.
func pack(ctx context.Context, tree, final string) error {
	if err := os.MkdirAll(filepath.Dir(final), 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(final), "new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for from, to := range map[string]string{"vmlinuz-*": "vmlinuz", "initrd.img-*": "initrd.img"} {
		found, err := filepath.Glob(filepath.Join(tree, "boot", from))
		if err != nil || len(found) != 1 {
			return fmt.Errorf("the image has %d files boot/%s in place of one (%v)", len(found), from, err)
		}
		if err := command(ctx, "cp", found[0], filepath.Join(dir, to)); err != nil {
			return err
		}
	}
	err = command(ctx, "mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota", "-d", tree,
		filepath.Join(dir, "root.img"), diskSize)
	if err != nil {
		return err
	}
	if err := os.Rename(dir, final); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// sourcesOf are the repositories of a release, as mmdebstrap takes them: this machine's files where the release is its
// own, and else the archive that these name.
func sourcesOf(ctx context.Context, release string) ([]string, error) {
	own, err := ownRelease()
	if err != nil {
		return nil, err
	}
	if release == own {
		var files []string
		for _, pattern := range []string{"/etc/apt/sources.list",
			"/etc/apt/sources.list.d/*.list", "/etc/apt/sources.list.d/*.sources"} {
			found, err := filepath.Glob(pattern)
			if err != nil {
				return nil, err
			}
			files = append(files, found...)
		}
		return files, nil
	}
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format",
		"$(CREATED_BY) $(CODENAME) $(COMPONENT) $(REPO_URI)").Output()
	if err != nil {
		return nil, fmt.Errorf("apt-get indextargets: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 4 && f[0] == "Packages" && f[1] == own && f[2] == "main" {
			const keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
			return []string{fmt.Sprintf("deb [signed-by=%s] %s %s main", keys, f[3], release)}, nil
		}
	}
	return nil, fmt.Errorf("this machine's apt has no repository of Debian's %s, in whose archive %s would be", own,
		release)
}

// ownRelease is the name of this machine's Debian.
func ownRelease() (string, error) {
	file, err := os.Open("/etc/os-release")
	if err != nil {
		return "", err
	}
	defer file.Close()
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		if name, ok := strings.CutPrefix(scanner.Text(), "VERSION_CODENAME="); ok {
			return strings.Trim(name, `"`), nil
		}
	}
	return "", errors.New("/etc/os-release has no VERSION_CODENAME: this is no Debian")
}

// command runs a program of the host and shows what it prints only where it fails.
func command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}
