package doctor

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"

	"berth/internal/apparmor"
	"berth/internal/config"
	"berth/internal/fileattr"
)

func TestKernelsAreJudged(t *testing.T) {
	for release, want := range map[string]Level{
		"6.18.1": Good, "6.15.0-rc1": Good, "6.12.38-cloud-amd64": Poor, "5.10.0": Poor, "5.4.0-generic": Bad,
		"4.19": Bad, "odd": Poor,
	} {
		if f := judgeKernel(release); f.Level != want || f.Level != Good && f.Advice == "" && release != "odd" {
			t.Errorf("%s: %+v", release, f)
		}
	}
}

// TestPluginsAreLookedForWhereTheDaemonLooksByDefault: in the directories of Debian's and of Fedora's package, too.
func TestPluginsAreLookedForWhereTheDaemonLooksByDefault(t *testing.T) {
	if want := config.Default().Network.CNIBinDirs; !slices.Equal(cniBinDirs, want) {
		t.Errorf("doctor looks in %q, and the daemon in %q", cniBinDirs, want)
	}
	for _, dir := range []string{"/usr/lib/cni", "/usr/libexec/cni"} {
		if !slices.Contains(cniBinDirs, dir) {
			t.Errorf("%s is not looked in", dir)
		}
	}
}

func TestSecurityModulesAreJudged(t *testing.T) {
	const all, without = "lockdown,capability,apparmor,bpf", "lockdown,capability,selinux"
	for _, c := range []struct {
		modules string
		parser  error
		want    Level
		detail  string
	}{
		{all, nil, Good, "AppArmor"}, {without, nil, Good, "SELinux"}, {"capability", nil, Good, "neither"},
		{all, apparmor.ErrNoParser, Poor, "AppArmor; but apparmor_parser is not installed"},
		{without, apparmor.ErrNoParser, Good, "SELinux"},
	} {
		f := judgeModules(c.modules, c.parser)
		if f.Level != c.want || !strings.HasPrefix(f.Detail, c.detail) {
			t.Errorf("%s, %v: %+v", c.modules, c.parser, f)
		}
	}
}

// TestTheQuotaOfKeysIsJudged. Seen to fail with either comparison left out.
func TestTheQuotaOfKeysIsJudged(t *testing.T) {
	for users, want := range map[string]Level{
		"    0:    95 94/94 89/1000000 1841/25000000\n":                                           Good,
		"    0:    95 94/94 950000/1000000 1841/25000000\n":                                       Poor,
		" 1000:     1 1/1 1/200 9/20000\n    0:    95 94/94 89/1000000 24000000/25000000\n":       Poor,
		" 1000:   199 199/199 199/200 19999/20000\n    0:    95 94/94 89/1000000 1841/25000000\n": Good,
		"": Good, "odd": Good,
	} {
		if f := judgeKeys(users); f.Level != want || f.Level != Good && f.Advice == "" {
			t.Errorf("%q: %+v", users, f)
		}
	}
}

func TestCgroupsAreJudged(t *testing.T) {
	all1 := []string{"rw", "cpu", "cpuacct", "cpuset", "memory", "pids", "devices", "freezer"}
	all2 := []string{"cpu", "cpuset", "io", "memory", "pids"}
	for _, c := range []struct {
		name    string
		mounted bool
		v1, v2  []string
		level   Level
		detail  string
	}{
		{"v2", true, nil, all2, Good, "v2 with"},
		{"v1", true, all1, nil, Good, "v1 with"},
		{"v1 with an empty v2", true, all1, []string{}, Good, "v1 with"},
		{"v1 with some of v2", true, all1, []string{"hugetlb"}, Good, "v1 with"},
		{"v2 without memory", true, nil, []string{"cpu", "cpuset", "pids"}, Bad, "v2 without memory"},
		{"v1 without pids", true, slices.DeleteFunc(slices.Clone(all1), func(s string) bool { return s == "pids" }),
			nil, Bad, "v1 without pids"},
		{"none", false, nil, nil, Bad, "nothing is mounted"},
	} {
		if f := judgeCgroups(c.mounted, c.v1, c.v2); f.Level != c.level || !strings.HasPrefix(f.Detail, c.detail) {
			t.Errorf("%s: %+v", c.name, f)
		}
	}
}

func TestDisksAreJudged(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		size, free, inodes, freeInodes uint64
		want                           Level
	}{
		{100 * gib, 50 * gib, 1000, 900, Good}, {1000 * gib, 50 * gib, 0, 0, Good}, {100 * gib, 4 * gib, 1000, 900, Poor},
		{100 * gib, gib / 4, 1000, 900, Bad}, {100 * gib, 50 * gib, 1000, 5, Bad},
	} {
		if f := judgeDisk("/d", c.size, c.free, c.inodes, c.freeInodes); f.Level != c.want {
			t.Errorf("%+v: %+v", c, f)
		}
	}
}

// TestCNIIsJudgedByTheFileThatTheDaemonTakes: the first that can be used. Seen to fail where the first file is the only
// one that is looked at, and where those without a name or with a missing plugin are taken.
func TestCNIIsJudgedByTheFileThatTheDaemonTakes(t *testing.T) {
	bin := t.TempDir()
	for _, plugin := range []string{"bridge", "host-local"} {
		if err := os.WriteFile(filepath.Join(bin, plugin), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	const usable = `{"name": "a", "plugins": [{"type": "bridge", "ipam": {"type": "host-local"}}]}`
	for name, c := range map[string]struct {
		files  map[string]string
		level  Level
		detail string
	}{
		"a list": {map[string]string{"00-readme.txt": "no", "10.conflist": usable, "20.conf": "{"}, Good,
			"10.conflist: bridge, host-local"},
		"a plugin":        {map[string]string{"10.conf": `{"name": "a", "type": "bridge"}`}, Good, "10.conf: bridge"},
		"a broken first":  {map[string]string{"05.conf": "{", "10.conflist": usable}, Poor, "05.conf: unexpected end"},
		"without a name":  {map[string]string{"05.conf": `{"type": "bridge"}`, "10.conflist": usable}, Poor, "no name"},
		"without plugins": {map[string]string{"05.conflist": `{"name": "b"}`, "10.conflist": usable}, Poor, "no plugins"},
		"without a type": {map[string]string{"05.conf": `{"name": "b"}`, "10.conflist": usable}, Poor,
			"a plugin has no type"},
		"a missing plugin": {map[string]string{"05.conf": `{"name": "b", "type": "x"}`, "10.conflist": usable}, Poor,
			"05.conf: there is no plugin x"},
		"a missing address plugin": {map[string]string{
			"05.conf": `{"name": "b", "type": "bridge", "ipam": {"type": "x"}}`, "10.conflist": usable}, Bad,
			"05.conf, but there is no plugin x"},
		"only broken ones": {map[string]string{"05.conf": "{", "10.conf": "["}, Bad, "no CNI configuration can be used"},
	} {
		dir := t.TempDir()
		for file, content := range c.files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		f := checkNetwork(t.Context(), Config{CNI: CNI{CNIConfDir: dir, CNIBinDirs: []string{bin}}})
		if f.Level != c.level || !strings.Contains(f.Detail, c.detail) || (f.Advice == "") != (c.level == Good) {
			t.Errorf("%s: %+v", name, f)
		}
		if c.level == Poor && !strings.Contains(f.Detail, "10.conflist: bridge") {
			t.Errorf("%s: the file that is taken is not named: %+v", name, f)
		}
	}
	none := filepath.Join(bin, "none")
	if choice, err := chooseCNI(none, "", nil); choice.file != "" || len(choice.broken) > 0 || err != nil {
		t.Errorf("no directory: %+v, %v", choice, err)
	}
}

// TestCNIIsJudgedAsTheDaemonIsConfigured: by its directories of plugins, its network and whether it has a bridge of its
// own. Seen to fail where the default directories are looked into, and where the network is not looked at.
func TestCNIIsJudgedAsTheDaemonIsConfigured(t *testing.T) {
	conf, bin, empty := t.TempDir(), t.TempDir(), t.TempDir()
	for path, content := range map[string]string{
		conf + "/10-a.conflist": `{"name": "a", "plugins": [{"type": "not-installed"}]}`,
		conf + "/20-b.conflist": `{"name": "b", "plugins": [{"type": "of-this-node"}]}`,
		bin + "/of-this-node":   "",
	} {
		if err := os.WriteFile(path, []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		cni    CNI
		level  Level
		detail string
	}{
		"the first":        {CNI{CNIConfDir: conf, CNIBinDirs: []string{bin}}, Poor, "no plugin not-installed"},
		"a network":        {CNI{CNIConfDir: conf, CNIBinDirs: []string{bin}, CNINetwork: "b"}, Good, "20-b.conflist"},
		"by default":       {CNI{CNIConfDir: conf, CNINetwork: "b"}, Bad, "no plugin of-this-node"},
		"another network":  {CNI{CNIConfDir: conf, CNINetwork: "c"}, Bad, `cni_network is "c"`},
		"none is there":    {CNI{CNIConfDir: empty, RequireCNI: true}, Poor, "require_cni"},
		"none, by network": {CNI{CNIConfDir: empty, CNINetwork: "c"}, Bad, `cni_network is "c"`},
	} {
		cfg := (&Daemon{CNI: c.cni}).overlay(Config{CNI: CNI{CNIConfDir: "/other"}})
		if f := checkNetwork(t.Context(), cfg); f.Level != c.level || !strings.Contains(f.Detail, c.detail) ||
			(f.Advice == "") != (c.level == Good) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// TestPluginsThatOtherPluginsRunAreLookedFor: Flannel's file does not name those that it needs.
func TestPluginsThatOtherPluginsRunAreLookedFor(t *testing.T) {
	for content, want := range map[string][]string{
		`{"name": "n", "plugins": [{"type": "flannel", "delegate": {"isDefaultGateway": true}}, {"type": "portmap"}]}`: {
			"flannel", "bridge", "host-local", "portmap",
		},
		`{"name": "n", "type": "flannel", "delegate": {"type": "ptp"}}`: {"flannel", "ptp", "host-local"},
		`{"name": "n", "type": "macvlan", "ipam": {"type": "dhcp"}}`:    {"macvlan", "dhcp"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "a.conf"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		choice, err := chooseCNI(dir, "", func(string) bool { return true })
		if err != nil || !slices.Equal(choice.plugins, want) {
			t.Errorf("%s: %+v, not %v: %v", content, choice, want, err)
		}
	}
}

func TestSocketsAreTried(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	look := func() Finding { return checkSocket(context.Background(), Config{Socket: path}) }
	if f := look(); f.Level != Poor || !strings.Contains(f.Detail, "does not exist") {
		t.Errorf("%+v", f)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if f := look(); f.Level != Good {
		t.Errorf("%+v", f)
	}
	l.Close()
	if f := look(); f.Level != Poor || !strings.Contains(f.Detail, "gone") {
		t.Errorf("%+v", f)
	}
	path = filepath.Dir(path)
	if f := look(); f.Level != Poor || !strings.Contains(f.Detail, "is a directory") {
		t.Errorf("%+v", f)
	}
}

func TestAnExaminationLeavesNothingBehind(t *testing.T) {
	root := t.TempDir()
	findings := Examine(context.Background(),
		Config{Socket: filepath.Join(root, "s"), Root: root, CNI: CNI{CNIConfDir: filepath.Join(root, "cni")}})
	for _, f := range findings {
		if f.Subject == "" || f.Detail == "" {
			t.Errorf("%+v says nothing", f)
		}
	}
	entries, err := os.ReadDir(root)
	if err != nil || len(entries) != 0 {
		t.Errorf("%v, %v", entries, err)
	}
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(root))
	if err != nil || len(infos) != 0 {
		t.Errorf("%v, %v", infos, err)
	}
}

func TestAClosedParentOfTheStateIsNamed(t *testing.T) {
	top := t.TempDir()
	closed := filepath.Join(top, "closed")
	for _, dir := range []string{top, filepath.Dir(top)} {
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(closed, 0o711); err != nil {
		t.Fatal(err)
	}
	if dir, mode := fileattr.Barring(top, 1<<32-2, 1<<32-2); dir != "" {
		t.Skipf("%s, in which temporary directories are, has mode %#o: name another in TMPDIR", dir, mode)
	}
	cfg := Config{State: filepath.Join(closed, "state")}
	if f := checkState(t.Context(), cfg); f.Level != Good {
		t.Errorf("%+v", f)
	}
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	if f := checkState(t.Context(), cfg); f.Level != Poor || !strings.Contains(f.Detail, closed+", of mode 0700") ||
		f.Advice == "" {
		t.Errorf("%+v", f)
	}
	cfg = Config{State: top, Daemon: &Daemon{NoUserNamespaces: "the kernel is too old"}}
	if f := checkState(t.Context(), cfg); f.Level != Poor || !strings.HasSuffix(f.Detail, "the kernel is too old") {
		t.Errorf("%+v", f)
	}
}
