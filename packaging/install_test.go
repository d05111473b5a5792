package packaging_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A system is a root with the essential packages of Debian, into which packages are installed. systemd does not run in
// it; in place of systemctl is a script that writes down its arguments. It prints /systemctl.show where it is asked to
// show something, and fails for arguments that are a line of /systemctl.fails.
type system struct {
	t    *testing.T
	root string
}

func newSystem(t *testing.T) *system {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if testing.Short() {
		t.Skip("makes a root of Debian's packages")
	}
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	// The tests' own directory is closed to others, and apt gives up its rights.
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	acquire := filepath.Join(dir, "acquire.conf")
	if err := os.WriteFile(acquire, []byte(output(t, "apt-config", "dump", "Acquire")), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &system{t: t, root: filepath.Join(dir, "root")}
	args := []string{"--quiet", "--mode=root", "--variant=essential", "--aptopt=" + acquire, "", s.root}
	for _, pattern := range []string{"sources.list", "sources.list.d/*.list", "sources.list.d/*.sources"} {
		found, err := filepath.Glob(filepath.Join("/etc/apt", pattern))
		if err != nil {
			t.Fatal(err)
		}
		args = append(args, found...)
	}
	output(t, "mmdebstrap", args...)
	s.write("/usr/bin/systemctl", "#!/bin/sh\necho \"$*\" >>/systemctl.log\n"+
		"[ \"$1\" != show ] || cat /systemctl.show 2>/dev/null\n! grep -qxF -e \"$*\" /systemctl.fails 2>/dev/null\n")
	if err := os.Chmod(s.at("/usr/bin/systemctl"), 0o755); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *system) at(path string) string { return filepath.Join(s.root, path) }

func (s *system) write(path, text string) {
	s.t.Helper()
	if err := os.MkdirAll(filepath.Dir(s.at(path)), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(s.at(path), []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// has compares files with what they should have inside; nothing stands for a file that should not be there.
func (s *system) has(files map[string]string) {
	s.t.Helper()
	for path, want := range files {
		data, err := os.ReadFile(s.at(path))
		if want == "" && !os.IsNotExist(err) || want != "" && string(data) != want {
			s.t.Errorf("%s has %.100q (%v), not %q", path, data, err, want)
		}
	}
}

// asked compares what systemctl was asked for since the last time.
func (s *system) asked(want ...string) {
	s.t.Helper()
	data, err := os.ReadFile(s.at("/systemctl.log"))
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	if got := strings.FieldsFunc(string(data), func(r rune) bool { return r == '\n' }); !slices.Equal(got, want) {
		s.t.Errorf("systemctl was asked for %q, not for %q", got, want)
	}
	if err := os.RemoveAll(s.at("/systemctl.log")); err != nil {
		s.t.Fatal(err)
	}
}

// booted makes the system say that systemd runs it, or not.
func (s *system) booted(yes bool) {
	s.t.Helper()
	var err error
	if yes {
		err = os.MkdirAll(s.at("/run/systemd/system"), 0o755)
	} else {
		err = os.RemoveAll(s.at("/run/systemd"))
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// releases are packages of three versions, whose default configurations differ: paths by version and format.
func releases(t *testing.T) map[string]string {
	t.Helper()
	program, tree, paths := packer(t), staged(t), map[string]string{}
	for _, version := range []string{"1.0.0", "1.1.0", "1.2.0"} {
		config := filepath.Join(tree, "etc/berth/config.toml")
		if err := os.WriteFile(config, []byte("# "+version+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		out := t.TempDir()
		output(t, program, "-root", tree, "-out", out, "-scripts", "scripts", "-version", version, "-arch", "amd64",
			"-time", "1700000000", "-c-libraries", "musl-dev=1.2.3")
		for _, format := range []string{"deb", "rpm"} {
			found, err := filepath.Glob(filepath.Join(out, "*."+format))
			if err != nil || len(found) != 1 {
				t.Fatal(found, err)
			}
			paths[fmt.Sprintf("%s.%s", version, format)] = found[0]
		}
	}
	return paths
}

const (
	config = "/etc/berth/config.toml"
	data   = "/var/lib/berth/pods/pod.json"
	// cliData is of a pod that `berth run` has made.
	cliData = "/var/lib/berth-cli/pods/pod/pod.json"
	unit    = "/usr/lib/systemd/system/berthd.service"
	// The call of a removal.
	disable = "disable --now berthd.socket berth-apply berth-device-plugin berthd berth-keeper"
)

// The calls of an upgrade: the keeper executes its new program in place, and berthd is restarted if it runs and its
// configuration is good.
var upgrade = []string{
	"--quiet is-active berth-keeper", "reload berth-keeper", showStart, restart, "try-restart berth-device-plugin",
	"try-restart berth-apply",
}

const (
	showStart = "show --property ExecStart --value berthd"
	restart   = "try-restart berthd"
)

// TestPackagesInARoot installs, upgrades and removes packages in a system. Seen to fail without the scripts' look at
// /run/systemd/system, without an upgrade's calls, without the purge of either directory, without the look at
// /proc/mounts for either, and with the module of SELinux loaded after the services are restarted, or left at a
// removal.
func TestPackagesInARoot(t *testing.T) {
	s, paths := newSystem(t), releases(t)
	t.Run("deb", func(t *testing.T) { debInARoot(s.with(t), paths) })
	t.Run("failures", func(t *testing.T) { failuresInARoot(s.with(t), paths) })
	t.Run("purge", func(t *testing.T) { purgeWithPods(s.with(t), paths) })
	t.Run("purge elsewhere", func(t *testing.T) { purgeElsewhere(s.with(t), paths) })
	t.Run("uninstall by hand", func(t *testing.T) { uninstallByHand(s.with(t)) })
	t.Run("rpm", func(t *testing.T) { rpmInARoot(s.with(t), paths) })
	t.Run("selinux", func(t *testing.T) { selinuxInARoot(s.with(t), paths) })
}

// with is the same system in another test.
func (s *system) with(t *testing.T) *system {
	t.Helper()
	other := &system{t: t, root: s.root}
	other.booted(false)
	return other
}

func (s *system) dpkg(args ...string) {
	s.t.Helper()
	output(s.t, "dpkg", append([]string{"--root=" + s.root, "--force-architecture", "--force-confold"}, args...)...)
}

// debInARoot: a package is installed where no systemd runs, upgraded where it does, removed and purged. The
// administrator's configuration survives all but the purge, and so do the data.
func debInARoot(s *system, paths map[string]string) {
	status := func(want string) {
		s.t.Helper()
		got := output(s.t, "dpkg-query", "--admindir="+s.at("/var/lib/dpkg"), "-W", "-f",
			"${db:Status-Status} ${Version}", "berth:amd64")
		if strings.TrimSpace(got) != want {
			s.t.Errorf("the package's status is %q, not %q", got, want)
		}
	}
	s.dpkg("-i", paths["1.0.0.deb"])
	status("installed 1.0.0")
	s.has(map[string]string{config: "# 1.0.0\n", unit: strings.TrimPrefix(unit, "/")})
	s.asked()
	s.dpkg("-i", paths["1.1.0.deb"])
	s.has(map[string]string{config: "# 1.1.0\n"})
	s.asked()

	s.booted(true)
	s.write(config, "# mine\n")
	s.write(data, "{}")
	s.write(cliData, "{}")
	s.dpkg("-i", paths["1.2.0.deb"])
	status("installed 1.2.0")
	s.has(map[string]string{config: "# mine\n", config + ".dpkg-dist": "# 1.2.0\n", data: "{}", cliData: "{}"})
	s.asked(slices.Concat([]string{"daemon-reload", "daemon-reload"}, upgrade)...)

	s.dpkg("--remove", "berth")
	status("config-files 1.2.0")
	s.has(map[string]string{config: "# mine\n", data: "{}", cliData: "{}", "/usr/bin/berthd": ""})
	s.asked(disable, "daemon-reload")
	s.dpkg("-i", paths["1.2.0.deb"])
	s.has(map[string]string{config: "# mine\n", data: "{}"})
	s.dpkg("--purge", "berth")
	for _, path := range []string{"/etc/berth", "/var/lib/berth", "/var/lib/berth-cli", "/usr/bin/berthd", unit} {
		if _, err := os.Stat(s.at(path)); !os.IsNotExist(err) {
			s.t.Errorf("%s is left: %v", path, err)
		}
	}
	// dpkg tells the script of an earlier version as long as its configuration is there: nothing runs that is restarted.
	s.asked(slices.Concat([]string{"daemon-reload"}, upgrade, []string{disable, "daemon-reload", "daemon-reload"})...)
}

// failuresInARoot: whatever systemctl fails at, dpkg has nothing left to do, all other calls are made, and a line says
// what to do about each. berthd is not restarted where its new version refuses the configuration. Seen to fail with
// scripts that end at the first failure.
func failuresInARoot(s *system, paths map[string]string) {
	s.booted(true)
	defer func() {
		for _, path := range []string{"/systemctl.fails", "/systemctl.show", "/check"} {
			if err := os.RemoveAll(s.at(path)); err != nil {
				s.t.Error(err)
			}
		}
	}()
	s.dpkg("-i", paths["1.0.0.deb"])
	s.asked("daemon-reload")
	dpkg := func(what, status string, args ...string) string {
		s.t.Helper()
		said, err := exec.Command("dpkg", append([]string{"--root=" + s.root, "--force-architecture", "--force-confold"},
			args...)...).CombinedOutput()
		if err != nil {
			s.t.Errorf("%s: %v: %s", what, err, said)
		}
		got, err := exec.Command("dpkg-query", "--admindir="+s.at("/var/lib/dpkg"), "-W", "-f", "${db:Status-Status}",
			"berth:amd64").Output()
		if string(got) != status && (status != "" || err == nil) {
			s.t.Errorf("%s: the package's status is %q, %v", what, got, err)
		}
		return string(said)
	}
	all := slices.Concat([]string{"daemon-reload", "daemon-reload"}, upgrade)
	withoutRestart := slices.DeleteFunc(slices.Clone(all), func(call string) bool { return call == restart })
	check := func(flags, script string) {
		s.write("/systemctl.show", "{ path=/check ; argv[]=/check"+flags+" ; ignore_errors=no ; pid=0 }\n")
		s.write("/check", "#!/bin/sh\n"+script+"\n")
		if err := os.Chmod(s.at("/check"), 0o755); err != nil {
			s.t.Fatal(err)
		}
	}
	for _, c := range []struct {
		what  string
		make  func()
		calls []string
		says  string
	}{
		{"the new units are not read", func() { s.write("/systemctl.fails", "daemon-reload\n") }, all,
			"systemd has not read the new units"},
		{"the keeper refuses", func() { s.write("/systemctl.fails", "reload berth-keeper\n") }, all,
			"and then: systemctl reload berth-keeper"},
		{"berthd does not start", func() { s.write("/systemctl.fails", restart+"\n") }, all,
			"see journalctl -u berthd, and then: systemctl restart berthd"},
		{"apply does not start", func() { s.write("/systemctl.fails", "try-restart berth-apply\n") }, all,
			"systemctl restart berth-apply"},
		{"nothing works", func() { s.write("/systemctl.fails", strings.Join(all, "\n")+"\n") }, slices.DeleteFunc(
			slices.Clone(all), func(call string) bool { return call == "reload berth-keeper" }), "systemctl restart berthd"},
		{"the configuration is refused", func() {
			check(" --keeper-binary=none --root /r", `echo "berthd: $*: unknown key" >&2; exit 1`)
		}, withoutRestart, "berthd: config dump --keeper-binary=none --root /r: unknown key\nberth: mend it"},
		{"the new program cannot be executed", func() { check("", "exec /none") }, withoutRestart, "is not restarted"},
		{"the configuration is good", func() { check(" --root /r", "echo good") }, all, ""},
		{"a unit with a variable", func() { check(" --root $ROOT", "exit 1") }, all, ""},
	} {
		for _, path := range []string{"/systemctl.fails", "/systemctl.show"} {
			if err := os.RemoveAll(s.at(path)); err != nil {
				s.t.Fatal(err)
			}
		}
		c.make()
		said := dpkg(c.what, "installed", "-i", paths["1.1.0.deb"])
		if !strings.Contains(said, c.says) || c.says == "" && strings.Contains(said, "berth: ") {
			s.t.Errorf("%s: it says %s", c.what, said)
		}
		s.asked(c.calls...)
	}
	s.write("/systemctl.fails", disable+"\ndaemon-reload\n")
	said := dpkg("a removal", "config-files", "--remove", "berth")
	if !strings.Contains(said, "not all units are stopped") {
		s.t.Errorf("a removal says %s", said)
	}
	s.asked(disable, "daemon-reload")
	dpkg("a purge", "", "--purge", "berth")
	s.asked("daemon-reload")
}

// purgeWithPods: what is still mounted, of pods whose containers were left running, stays, in either mount namespace.
// Seen to fail without the look into the mount namespace of Berth's own, and without the removal of its mounts.
func purgeWithPods(s *system, paths map[string]string) {
	const (
		rootfs = "overlay /var/lib/berth/pods/1/rootfs overlay rw 0 0\n"
		pin    = "/dev/sda /run/berth/keeper/mounts ext4 rw 0 0\n"
		own    = pin + "nsfs /run/berth/keeper/mounts/ns nsfs rw 0 0\n"
		covers = pin + "/dev/sda /var/lib/berth ext4 rw 0 0\ntmpfs /run/berth/pods tmpfs rw 0 0\n"
	)
	// In place of these programs of util-linux are scripts.
	s.write("/usr/bin/nsenter", "#!/bin/sh\n[ \"$*\" = '--mount=/run/berth/keeper/mounts/ns cat /proc/mounts' ] && "+
		"cat /own-mounts\n")
	s.write("/usr/bin/umount", "#!/bin/sh\necho \"$*\" >>/umount.log\n")
	for _, program := range []string{"/usr/bin/nsenter", "/usr/bin/umount"} {
		if err := os.Chmod(s.at(program), 0o755); err != nil {
			s.t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		what, node, own string
		stays           bool
	}{
		{"a container", rootfs, "", true},
		{"a volume of berth run", "tmpfs /var/lib/berth-cli/pods/pod/volumes/v tmpfs rw 0 0\n", "", true},
		{"a container in Berth's own mount namespace", own, covers + rootfs, true},
		{"a mount namespace that cannot be looked into", own, "", true},
		{"Berth's own mount namespace without pods", own, covers, false},
	} {
		s.dpkg("-i", paths["1.0.0.deb"])
		s.write(data, "{}")
		s.write(cliData, "{}")
		s.write("/proc/mounts", tc.node)
		if tc.own != "" {
			s.write("/own-mounts", tc.own)
		}
		s.dpkg("--purge", "berth")
		unmounted, _ := os.ReadFile(s.at("/umount.log"))
		if tc.stays {
			s.has(map[string]string{data: "{}", cliData: "{}", config: ""})
		} else {
			s.has(map[string]string{data: "", cliData: "", config: ""})
			if got := string(unmounted); got != "/run/berth/keeper/mounts/ns\n/run/berth/keeper/mounts\n" {
				s.t.Errorf("%s: unmounted is %q", tc.what, got)
			}
		}
		if tc.stays && len(unmounted) > 0 {
			s.t.Errorf("%s: unmounted is %q", tc.what, unmounted)
		}
		for _, path := range []string{"/proc/mounts", "/own-mounts", "/umount.log", data, cliData} {
			if err := os.RemoveAll(s.at(path)); err != nil {
				s.t.Error(err)
			}
		}
	}
}

// purgeElsewhere: the data are removed, and nothing else, where their directory is a disk of its own or a link to a
// directory elsewhere. What is mounted there, by the path without the link, keeps them. Seen to fail where the script
// removed the directories by their own paths: rm failed for the mount point, and removed the link only.
func purgeElsewhere(s *system, paths map[string]string) {
	const disk, other = "/data disk", "/data disk/other"
	state, cli := s.at("/var/lib/berth"), s.at("/var/lib/berth-cli")
	purged := func(t *testing.T, mounts string, gone, left []string) {
		t.Helper()
		s := s.with(t)
		s.dpkg("-i", paths["1.0.0.deb"])
		for _, path := range append(gone, left...) {
			s.write(path, "{}")
		}
		s.write("/proc/mounts", mounts)
		s.dpkg("--purge", "berth")
		for _, path := range gone {
			s.has(map[string]string{path: ""})
		}
		for _, path := range left {
			s.has(map[string]string{path: "{}"})
			if err := os.Remove(s.at(path)); err != nil {
				t.Error(err)
			}
		}
		if err := os.Remove(s.at("/proc/mounts")); err != nil {
			t.Error(err)
		}
	}
	s.t.Run("a disk of its own", func(t *testing.T) {
		if err := os.MkdirAll(state, 0o755); err != nil {
			t.Fatal(err)
		}
		output(t, "mount", "-t", "tmpfs", "purge", state)
		t.Cleanup(func() { output(t, "umount", state) })
		purged(t, "purge /var/lib/berth tmpfs rw 0 0\n", []string{data, "/var/lib/berth/.hidden", cliData}, nil)
		if entries, err := os.ReadDir(state); err != nil || len(entries) > 0 {
			t.Errorf("the disk has %v, %v", entries, err)
		}
	})
	if err := os.RemoveAll(state); err != nil {
		s.t.Fatal(err)
	}
	link := func(t *testing.T, at, target string) {
		t.Helper()
		if err := os.MkdirAll(s.at(target), 0o755); err != nil {
			t.Fatal(err)
		}
		// The same inside of the root and outside.
		if err := os.Symlink("../.."+target, at); err != nil {
			t.Fatal(err)
		}
	}
	s.t.Run("links", func(t *testing.T) {
		link(t, state, disk+"/berth")
		link(t, cli, disk+"/cli")
		purged(t, "", []string{data, cliData, disk + "/berth/pods/pod.json", disk + "/cli/pods/pod/pod.json"},
			[]string{other})
		for _, path := range []string{state, cli, s.at(disk + "/berth"), s.at(disk + "/cli")} {
			if _, err := os.Lstat(path); !os.IsNotExist(err) {
				t.Errorf("%s is left: %v", path, err)
			}
		}
	})
	s.t.Run("a link, with pods", func(t *testing.T) {
		link(t, state, disk+"/berth")
		purged(t, "overlay /data\\040disk/berth/pods/1/rootfs overlay rw 0 0\n", nil, []string{data, cliData, other})
		if err := os.Remove(state); err != nil {
			t.Error(err)
		}
	})
}

// uninstallByHand runs what docs/operations.md has for the end of an uninstallation. Files of the node that are mounted
// below Berth's directories stay, as with a subPath of a hostPath after a kill of `berth run`. Seen to fail where the
// page had rm alone.
func uninstallByHand(s *system) {
	page, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		s.t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n## Uninstall\n\n")
	commands, _, ended := strings.Cut(section, "\n\n")
	_, last, removes := strings.Cut(commands, "\n    make uninstall")
	_, last, rest := strings.Cut(last, "\n")
	if !found || !ended || !removes || !rest {
		s.t.Fatalf("the page has another form: %.500s", section)
	}
	const file, manifest = "/srv/app/file", "/etc/berth/manifests/pod.yaml"
	part := "/var/lib/berth-cli/pods/pod/subpaths/0"
	for _, path := range []string{file, manifest, data, cliData, part + "/.made"} {
		s.write(path, "{}")
	}
	output(s.t, "mount", "--bind", s.at("/srv/app"), s.at(part))
	mounted := true
	unmount := func() {
		if mounted {
			output(s.t, "umount", s.at(part))
			mounted = false
		}
	}
	s.t.Cleanup(unmount)
	s.write("/proc/mounts", "/dev/sda "+part+" ext4 rw 0 0\n")
	if said := output(s.t, "chroot", s.root, "sh", "-c", last); !strings.Contains(said, part) {
		s.t.Errorf("the command does not print what is mounted: %q", said)
	}
	s.has(map[string]string{file: "{}", manifest: "{}", data: "{}", cliData: "{}"})
	unmount()
	s.write("/proc/mounts", "/dev/sda /srv ext4 rw 0 0\n")
	output(s.t, "chroot", s.root, "sh", "-c", last)
	s.has(map[string]string{file: "{}"})
	for _, path := range []string{"/etc/berth", "/var/lib/berth", "/var/lib/berth-cli"} {
		if _, err := os.Stat(s.at(path)); !os.IsNotExist(err) {
			s.t.Errorf("%s is left: %v", path, err)
		}
	}
	if err := os.Remove(s.at("/proc/mounts")); err != nil {
		s.t.Error(err)
	}
}

// rpmInARoot: as debInARoot, by Debian's rpm. An rpm has no purge.
func rpmInARoot(s *system, paths map[string]string) {
	if _, err := exec.LookPath("rpm"); err != nil {
		s.t.Skip(err)
	}
	rpm := func(args ...string) string {
		s.t.Helper()
		return output(s.t, "rpm", append([]string{"--root", s.root}, args...)...)
	}
	rpm("--nodeps", "--ignorearch", "-i", paths["1.0.0.rpm"])
	s.has(map[string]string{config: "# 1.0.0\n", unit: strings.TrimPrefix(unit, "/")})
	if text := rpm("--nodeps", "-V", "berth"); text != "" {
		s.t.Errorf("the installed files differ from the package's:\n%s", text)
	}
	s.asked()

	s.booted(true)
	s.write(config, "# mine\n")
	s.write(data, "{}")
	rpm("--nodeps", "--ignorearch", "-U", paths["1.2.0.rpm"])
	if got := rpm("-q", "berth"); !strings.Contains(got, "berth-1.2.0") || strings.Contains(got, "1.0.0") {
		s.t.Errorf("installed are %s", got)
	}
	s.has(map[string]string{config: "# mine\n", config + ".rpmnew": "# 1.2.0\n", data: "{}"})
	s.asked(slices.Concat([]string{"daemon-reload"}, upgrade, []string{"daemon-reload"})...)

	rpm("--nodeps", "-e", "berth")
	s.has(map[string]string{config: "", config + ".rpmsave": "# mine\n", data: "{}", "/usr/bin/berthd": ""})
	s.asked(disable, "daemon-reload")
}
