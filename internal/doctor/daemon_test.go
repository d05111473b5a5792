package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestTheDaemonIsComparedWithItsKeeper(t *testing.T) {
	for name, tc := range map[string]struct {
		daemon *Daemon
		level  Level
		advice string
	}{
		"one version":    {&Daemon{Version: "2.0.0", KeeperVersion: "2.0.0", Root: "/r", State: "/s"}, Good, ""},
		"an old keeper":  {&Daemon{Version: "2.0.0", KeeperVersion: "1.0.0"}, Poor, "systemctl reload berth-keeper"},
		"a silent one":   {&Daemon{Version: "2.0.0"}, Bad, "systemctl restart berth-keeper"},
		"no daemon runs": {nil, Poor, "systemctl start berthd"},
	} {
		f := checkDaemon(t.Context(), Config{Daemon: tc.daemon})
		if f.Level != tc.level || !strings.Contains(f.Advice, tc.advice) || (f.Advice == "") != (tc.level == Good) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// TestTheDaemonIsComparedWithTheInstalledPrograms: with the version of this command, and with the files of berthd and
// the keeper, which can be of the same version and built anew.
func TestTheDaemonIsComparedWithTheInstalledPrograms(t *testing.T) {
	dir := t.TempDir()
	for process, program := range map[string]string{
		"1": "/usr/bin/berthd", "2": "/usr/bin/berth-keeper", "3": "/usr/bin/berthd (deleted)",
		"4": "/usr/bin/berth-keeper (deleted)", "5": "/usr/bin/other (deleted)",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, process), 0o700),
			os.Symlink(program, filepath.Join(dir, process, "exe"))); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		command       string
		daemon, keeps int
		level         Level
		detail        string
	}{
		"all the same":              {"2", 1, 2, Good, "berthd and keeper are version 2"},
		"another command":           {"3", 1, 2, Poor, "berthd and keeper are version 2, and this command is 3"},
		"a new file of berthd":      {"2", 3, 2, Poor, "the file of berthd was replaced"},
		"a new file of the keeper":  {"2", 1, 4, Poor, "the file of berth-keeper was replaced"},
		"new files":                 {"2", 3, 4, Poor, "the file of berthd and of berth-keeper was replaced"},
		"processes that are others": {"2", 5, 5, Good, ""},
		"processes not known":       {"2", 0, 0, Good, ""},
		"processes that have ended": {"2", 8, 9, Good, ""},
	} {
		f := checkDaemon(t.Context(), Config{Version: c.command, Proc: dir,
			Daemon: &Daemon{Version: "2", KeeperVersion: "2", PID: c.daemon, KeeperPID: c.keeps}})
		if f.Level != c.level || !strings.HasPrefix(f.Detail, c.detail) || (f.Level != Good) != (f.Advice != "") {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestTheDaemonsDirectoriesAreLookedAt(t *testing.T) {
	cfg := (&Daemon{Root: "/data", State: "/state"}).overlay(Config{Root: "/r", State: "/s", CNI: CNI{CNIConfDir: "/c"}})
	if cfg.Root != "/data" || cfg.State != "/state" || cfg.CNIConfDir != "/c" {
		t.Errorf("%+v", cfg)
	}
	// Those of a flag are looked at, and the daemon's are told all the same.
	d := &Daemon{Version: "1", KeeperVersion: "1", Root: "/data", State: "/state"}
	cfg = d.overlay(Config{Root: "/r", State: "/s", Daemon: d, Given: Given{Root: true}})
	if cfg.Root != "/r" || cfg.State != "/state" {
		t.Errorf("%+v", cfg)
	}
	if f := checkDaemon(t.Context(), cfg); !strings.HasSuffix(f.Detail, "root /data, state /state") {
		t.Errorf("%+v", f)
	}
}

// running is a directory of processes with a daemon whose program is a script.
func running(t *testing.T, script string, args ...string) Config {
	t.Helper()
	dir := proc(t, append([]string{"berthd"}, args...)...)
	path := filepath.Join(dir, "7", "exe")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return Config{Proc: dir, Daemon: &Daemon{PID: 7}}
}

// TestTheConfigurationIsCheckedAsTheDaemonReadsIt: by its program and with its flags.
func TestTheConfigurationIsCheckedAsTheDaemonReadsIt(t *testing.T) {
	f := checkConfiguration(t.Context(), running(t, `echo "$@"`, "--config=/x y", "--keeper-binary=none"))
	if f.Level != Good || f.Detail != "config check --config=/x y --keeper-binary=none" {
		t.Errorf("%+v", f)
	}
	f = checkConfiguration(t.Context(), running(t,
		`printf 'berthd: /c.toml:3: checkpoint.criu: none\n/c.toml:5: hosts_dir: broken\n' >&2; exit 1`))
	if f.Level != Poor || f.Detail != "/c.toml:3: checkpoint.criu: none" ||
		f.Advice != "/c.toml:5: hosts_dir: broken\nMend it, and then: systemctl reload berthd" {
		t.Errorf("%+v", f)
	}
	for name, cfg := range map[string]Config{
		"no daemon": {}, "no process": {Daemon: &Daemon{}},
		"one that has ended":              {Proc: t.TempDir(), Daemon: &Daemon{PID: 7}},
		"systemd, which holds the socket": {Proc: proc(t, "/sbin/init"), Daemon: &Daemon{PID: 7}},
	} {
		if f := checkConfiguration(t.Context(), cfg); f.Level != Poor || f.Advice != "berthd config check" {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestRegistriesAreAskedByTheDaemonsProgram(t *testing.T) {
	const all = "2 hosts of registries that have a hosts.toml in /d: all answer"
	for script, want := range map[string]struct {
		level  Level
		detail string
	}{
		`echo "` + all + `"`:                                  {Good, all},
		`echo "Print and check the configuration"`:            {Good, "not asked: the daemon is of a version that cannot"},
		`echo "berthd: registry a.test: refused" >&2; exit 1`: {Poor, "registry a.test: refused"},
	} {
		f := checkRegistries(t.Context(), running(t, script))
		if f.Level != want.level || f.Detail != want.detail || (f.Level == Poor) != (f.Advice != "") {
			t.Errorf("%s: %+v", script, f)
		}
	}
	if f := checkRegistries(t.Context(), Config{}); f.Level != Good || !strings.HasPrefix(f.Detail, "not asked: ") {
		t.Errorf("no daemon: %+v", f)
	}
}

// TestAKubeletAndItsRuntimeHaveToMakeCgroupsAlike. A flag of the kubelet stands over its file.
func TestAKubeletAndItsRuntimeHaveToMakeCgroupsAlike(t *testing.T) {
	for name, tc := range map[string]struct {
		args  []string
		file  string
		own   string
		level Level
	}{
		"the default":            {own: "cgroupfs", level: Good},
		"the default is another": {own: "systemd", level: Poor},
		"its file": {
			args: []string{"--config", "/k.yaml"}, file: "a: b\ncgroupDriver: systemd\n", own: "systemd", level: Good,
		},
		"its file says another": {
			args: []string{"--config=/k.yaml"}, file: "cgroupDriver: \"systemd\"\n", own: "cgroupfs", level: Poor,
		},
		"its file does not say": {args: []string{"--config=/k.yaml"}, file: "a: b\n", own: "cgroupfs", level: Good},
		"its flag": {
			args: []string{"--config=/k.yaml", "--cgroup-driver=systemd"}, file: "cgroupDriver: cgroupfs\n",
			own: "systemd", level: Good,
		},
		"a file that is not there": {args: []string{"--config=/k.yaml"}, own: "cgroupfs", level: Poor},
	} {
		t.Run(name, func(t *testing.T) {
			dir := proc(t, append([]string{"/usr/bin/kubelet"}, tc.args...)...)
			if tc.file != "" {
				if err := os.Mkdir(filepath.Join(dir, "7", "root"), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, "7", "root", "k.yaml"), []byte(tc.file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			f := checkKubelet(t.Context(), Config{Proc: dir, Daemon: &Daemon{CgroupDriver: tc.own}})
			if f.Level != tc.level || (f.Advice == "") != (tc.level == Good) {
				t.Errorf("%+v", f)
			}
		})
	}
	if f := checkKubelet(t.Context(), Config{Proc: proc(t, "bash")}); f.Level != Good {
		t.Errorf("without a kubelet: %+v", f)
	}
}

// TestAKubeletsFileIsReadSafely: any process of a container can call itself a kubelet, and its file be what never ends,
// or a link to a file of the node. Seen to fail where the file was opened by its name: it hung at the pipe, read all of
// the sparse file, and followed the links.
func TestAKubeletsFileIsReadSafely(t *testing.T) {
	node := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(node, []byte("cgroupDriver: systemd\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	up := strings.Repeat("../", 20)
	for name, tc := range map[string]struct {
		make   func(path string) error
		detail string
	}{
		"a pipe":        {func(path string) error { return unix.Mkfifo(path, 0o600) }, "not a regular file"},
		"a directory":   {func(path string) error { return os.Mkdir(path, 0o700) }, "not a regular file"},
		"a device":      {func(path string) error { return os.Symlink("/dev/null", path) }, "no such file"},
		"a link out":    {func(path string) error { return os.Symlink(node, path) }, "no such file"},
		"one upwards":   {func(path string) error { return os.Symlink(up+node, path) }, "no such file"},
		"a sparse file": {sparse, "over the limit"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := proc(t, "kubelet", "--config=/k")
			root := filepath.Join(dir, "7", "root")
			if err := errors.Join(os.Mkdir(root, 0o700), tc.make(filepath.Join(root, "k"))); err != nil {
				t.Fatal(err)
			}
			found := make(chan Finding, 1)
			go func() {
				found <- checkKubelet(t.Context(), Config{Proc: dir, Daemon: &Daemon{CgroupDriver: "cgroupfs"}})
			}()
			select {
			case f := <-found:
				if f.Level != Poor || !strings.Contains(f.Detail, tc.detail) || !strings.Contains(f.Advice, "/proc/7/cmdline") {
					t.Errorf("%+v", f)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the check does not return")
			}
		})
	}
}

// sparse makes a file of 64 MiB that takes no space.
func sparse(path string) error {
	return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 64<<20))
}

// TestAKubeletsFileIsFoundBelowItsRoot, which in /proc is a link of the kernel's.
func TestAKubeletsFileIsFoundBelowItsRoot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "k.yaml")
	if err := os.WriteFile(file, []byte("a: b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	data, err := kubelet{pid: "self", args: []string{"kubelet", "--config", file}}.configuration("/proc")
	if err != nil || string(data) != "a: b\n" {
		t.Errorf("%q, %v", data, err)
	}
}

// TestAKubeletInAContainerIsTheLastChoice: it is the node's only if there is no other. Seen to fail where the first
// process with the name was taken.
func TestAKubeletInAContainerIsTheLastChoice(t *testing.T) {
	const (
		id  = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
		pod = "0::/kubepods/besteffort/pod5/" + id + "\n"
		own = "0::/system.slice/kubelet.service\n"
	)
	for name, tc := range map[string]struct {
		cgroups map[string]string // by process
		want    string            // process; empty: none
	}{
		"the node's":            {map[string]string{"7": own}, "7"},
		"behind a pod's":        {map[string]string{"30": pod, "7": own}, "7"},
		"before a pod's":        {map[string]string{"10": own, "7": pod}, "10"},
		"in a container, only":  {map[string]string{"30": "0::/docker/" + id + "\n"}, "30"},
		"in a scope of systemd": {map[string]string{"30": "0::/crio-" + id + ".scope\n", "40": own}, "40"},
		"cgroup v1":             {map[string]string{"30": "3:cpu:/a\n2:pids:/berth/" + id + "\n", "40": own}, "40"},
		"one that has ended":    {map[string]string{"30": "", "40": own}, "40"},
		"none":                  {nil, ""},
	} {
		dir := t.TempDir()
		for pid, cgroup := range tc.cgroups {
			process := filepath.Join(dir, pid)
			err := errors.Join(os.Mkdir(process, 0o700),
				os.WriteFile(filepath.Join(process, "cmdline"), []byte("kubelet\x00"), 0o600))
			if cgroup != "" {
				err = errors.Join(err, os.WriteFile(filepath.Join(process, "cgroup"), []byte(cgroup), 0o600))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if k, runs := findKubelet(dir); k.pid != tc.want || runs != (tc.want != "") {
			t.Errorf("%s: process %q, want %q", name, k.pid, tc.want)
		}
	}
}

func TestTheDiskOfTheStateIsJudged(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		free, inodes, freeInodes uint64
		want                     Level
	}{
		{100 * mib, 1000, 900, Good}, {100 * mib, 0, 0, Good}, {20 * mib, 1000, 900, Poor}, {0, 1000, 900, Bad},
		{100 * mib, 1000, 9, Bad},
	} {
		if f := judgeStateDisk("/run", 400*mib, c.free, c.inodes, c.freeInodes); f.Level != c.want ||
			(f.Advice == "") != (c.want == Good) {
			t.Errorf("%s: %+v", fmt.Sprint(c), f)
		}
	}
}
