package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/hostpath/inroot"
)

// Daemon describes the running daemon, as it tells it over its socket.
type Daemon struct {
	Version       string
	KeeperVersion string // empty: the keeper does not answer
	Root, State   string
	CNI
	CgroupDriver string // cgroupfs or systemd; empty: it does not tell
	PID          int    // 0: it is not known
	KeeperPID    int    // 0: likewise
	NRI          *NRI   // nil: the interface for NRI plugins is off
	Unsynced     *Unsynced
	Verifiers    *Verifiers   // nil: images are not verified
	Snapshotter  *Snapshotter // nil: none is configured
	CRIU         string       // the program of its configuration; empty: the one in PATH
	// NoUserNamespaces says why pods with user namespaces are refused; empty: they are not.
	NoUserNamespaces string
}

// Command runs the daemon's program with other arguments, and with the flags that the daemon was started with. It is
// the program that runs, even if its file was replaced since.
func (d *Daemon) Command(ctx context.Context, words ...string) (*exec.Cmd, error) {
	return d.command(ctx, "/proc", words...)
}

func (d *Daemon) command(ctx context.Context, proc string, words ...string) (*exec.Cmd, error) {
	if d == nil || d.PID == 0 {
		return nil, errors.New("the daemon's process is not known")
	}
	process := filepath.Join(proc, fmt.Sprint(d.PID))
	line, err := firstBytes(filepath.Join(process, "cmdline"))
	if err != nil {
		return nil, err
	}
	args := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	if filepath.Base(args[0]) != "berthd" {
		return nil, fmt.Errorf("%s listens on the daemon's socket", args[0])
	}
	return exec.CommandContext(ctx, filepath.Join(process, "exe"), append(words, args[1:]...)...), nil
}

// overlay returns a configuration with the directories and the network of the daemon, but for those that flags have
// given.
func (d *Daemon) overlay(cfg Config) Config {
	for _, one := range []struct {
		to    *string
		from  string
		given bool
	}{
		{&cfg.Root, d.Root, cfg.Given.Root}, {&cfg.State, d.State, cfg.Given.State},
		{&cfg.CNIConfDir, d.CNIConfDir, cfg.Given.CNIConfDir},
	} {
		if one.from != "" && !one.given {
			*one.to = one.from
		}
	}
	cfg.CNIBinDirs, cfg.CNINetwork, cfg.RequireCNI, cfg.Bridge = d.CNIBinDirs, d.CNINetwork, d.RequireCNI, d.Bridge
	return cfg
}

func (c *Config) proc() string {
	if c.Proc == "" {
		return "/proc"
	}
	return c.Proc
}

// replaced names the programs that run though their files were removed or replaced since they were started: of the same
// version perhaps, built anew. Only root sees that of root's processes.
func (d *Daemon) replaced(proc string) (programs []string) {
	for _, p := range []struct {
		pid     int
		program string
	}{{d.PID, "berthd"}, {d.KeeperPID, "berth-keeper"}} {
		to, err := os.Readlink(filepath.Join(proc, fmt.Sprint(p.pid), "exe"))
		if file, gone := strings.CutSuffix(to, " (deleted)"); err == nil && gone && filepath.Base(file) == p.program {
			programs = append(programs, p.program)
		}
	}
	return programs
}

// takeOver is the advice for programs that are older than their files.
const takeOver = "systemctl daemon-reload; systemctl reload berth-keeper: it takes its new version over in place, " +
	"and containers go on.\nsystemctl restart berthd"

// checkDaemon compares the daemon with the keeper, with this command, and with the installed programs.
func checkDaemon(_ context.Context, cfg Config) Finding {
	d := cfg.Daemon
	if d == nil {
		return poor("berthd does not answer", "systemctl start berthd berth-keeper, or run berthd.")
	}
	switch {
	case d.KeeperVersion == "":
		return bad("berthd "+d.Version+" runs, and the keeper does not answer",
			"systemctl restart berth-keeper: containers live on. See what it says: journalctl -u berth-keeper")
	case d.KeeperVersion != d.Version:
		return poor(fmt.Sprintf("berthd is version %s and the keeper %s", d.Version, d.KeeperVersion),
			"systemctl reload berth-keeper: it takes its new version over in place, and containers go on.\n"+
				"If berthd is the older one: systemctl restart berthd")
	case cfg.Version != "" && cfg.Version != d.Version:
		return poor(fmt.Sprintf("berthd and keeper are version %s, and this command is %s", d.Version, cfg.Version),
			"If berthd is the older one: "+takeOver+"\nIf this command is the older one, see which one it is: command -v berth")
	}
	if programs := d.replaced(cfg.proc()); len(programs) > 0 {
		return poor(fmt.Sprintf("the file of %s was replaced or removed since it was started (version %s)",
			strings.Join(programs, " and of "), d.Version), takeOver)
	}
	return good(fmt.Sprintf("berthd and keeper are version %s, root %s, state %s", d.Version, d.Root, d.State))
}

// checkWait bounds how long the daemon's program may take to check a configuration.
const checkWait = 20 * time.Second

// checkConfiguration has the program that runs check the files that it reads, with the flags that it was started with:
// the binaries of runtime handlers, CRIU, each hosts.toml, CNI, certificates.
func checkConfiguration(ctx context.Context, cfg Config) Finding {
	ctx, cancel := context.WithTimeout(ctx, checkWait)
	defer cancel()
	check, err := cfg.Daemon.command(ctx, cfg.proc(), "config", "check")
	if err != nil {
		return poor("not checked: "+err.Error(), "berthd config check")
	}
	out, err := check.CombinedOutput()
	var ended *exec.ExitError
	switch _, warnings, warned := strings.Cut(string(out), "\nwarning: "); {
	case err == nil && warned:
		return poor(strings.TrimSpace(warnings), "Mend it, and then: systemctl reload berthd")
	case err == nil:
		return good(strings.TrimSpace(string(out)))
	case errors.Is(err, os.ErrPermission):
		return poor("not checked: root alone may execute the daemon's program", "sudo berthd config check")
	case !errors.As(err, &ended):
		return poor("not checked: "+err.Error(), "berthd config check")
	}
	problems := strings.Split(strings.TrimPrefix(strings.TrimSpace(string(out)), "berthd: "), "\n")
	return poor(problems[0], strings.Join(append(problems[1:], "Mend it, and then: systemctl reload berthd"), "\n"))
}

// checkRegistries has the daemon's program ask each registry and mirror that has a hosts.toml: as its pulls would,
// through the same proxies and with the same certificates.
func checkRegistries(ctx context.Context, cfg Config) Finding {
	ctx, cancel := context.WithTimeout(ctx, checkWait)
	defer cancel()
	const again = "Ask again: berthd config registries"
	ask, err := cfg.Daemon.command(ctx, cfg.proc(), "config", "registries")
	if err != nil {
		return good("not asked: " + err.Error())
	}
	out, err := ask.CombinedOutput()
	text := strings.TrimSpace(string(out))
	var ended *exec.ExitError
	switch {
	case err == nil && strings.Contains(text, "a hosts.toml in"):
		return good(text)
	case err == nil, strings.Contains(text, "unknown command"):
		return good("not asked: the daemon is of a version that cannot")
	case !errors.As(err, &ended):
		return good("not asked: " + err.Error())
	}
	problems := strings.Split(strings.TrimPrefix(text, "berthd: "), "\n")
	return poor(problems[0], strings.Join(append(problems[1:], again), "\n"))
}

var cgroupDriverKey = regexp.MustCompile(`(?m)^cgroupDriver:\s*["']?([a-z]+)`)

// checkKubelet compares who makes the cgroups of pods: a kubelet and its runtime have to agree.
func checkKubelet(_ context.Context, cfg Config) Finding {
	k, runs := findKubelet(cfg.proc())
	if !runs {
		return good("no kubelet runs here")
	}
	if k.hidden {
		return good(k.unit + " runs a kubelet and hides its flags. From Kubernetes 1.31 on, the kubelet asks berthd " +
			"who makes cgroups")
	}
	if cfg.Daemon == nil || cfg.Daemon.CgroupDriver == "" {
		return good("a kubelet runs here; the daemon that could be compared with it does not")
	}
	driver, from := "cgroupfs", "the kubelet's default"
	file := flagValue(k.args, "--config")
	if file != "" {
		data, err := k.configuration(cfg.proc())
		if err != nil {
			advice := "See how it was started: tr '\\0' '\\n' </proc/" + k.pid + "/cmdline"
			if errors.Is(err, os.ErrPermission) {
				advice = "Run it as root: sudo berth doctor"
			}
			return poor("the kubelet's configuration cannot be read: "+err.Error(), advice)
		}
		if m := cgroupDriverKey.FindSubmatch(data); m != nil {
			driver, from = string(m[1]), file
		}
	}
	if value := flagValue(k.args, "--cgroup-driver"); value != "" {
		driver, from = value, "the kubelet's flag --cgroup-driver"
	}
	own := cfg.Daemon.CgroupDriver
	if driver == own {
		return good("the kubelet and berthd make cgroups by " + own)
	}
	if file == "" {
		file = "the file of the kubelet's --config"
	}
	return poor(fmt.Sprintf("berthd makes cgroups by %s, and the kubelet by %s (%s), unless it asks its runtime, "+
		"as it does by default from version 1.31 on", own, driver, from),
		fmt.Sprintf("Set cgroupDriver: %s in %s, and then: systemctl restart kubelet\n"+
			"or set cgroup_driver = %q in the daemon's configuration, and then: systemctl restart berthd", own, file, driver))
}

// kubelet is the kubelet that runs on this machine: a process of its own, or a part of a k3s process.
type kubelet struct {
	pid    string
	args   []string // the command line of the process
	unit   string   // of systemd
	hidden bool     // the command line does not show the kubelet's flags, because k3s replaces it by its title
}

// maxKubeletFile is how large a kubelet's configuration may be, in bytes. They have a few thousand.
const maxKubeletFile = 1 << 20

// configuration is the file of the kubelet's --config, and nothing without that flag. It is read as the kubelet sees
// it, which may have a root of its own: that of a container, where any process may call itself a kubelet. So no link
// leads out of that root, and neither a pipe nor a device is opened.
func (k kubelet) configuration(proc string) ([]byte, error) {
	file := flagValue(k.args, "--config")
	if file == "" {
		return nil, nil
	}
	return inroot.File(filepath.Join(proc, k.pid, "root"), file, maxKubeletFile)
}

// withFlag says how the kubelet is started with a flag.
func (k kubelet) withFlag(flag string) string {
	if k.hidden {
		return "start " + k.unit + " with --kubelet-arg=" + flag + ", unless it has that flag, which cannot be seen"
	}
	return "start the kubelet with --" + flag
}

// The units of k3s' installer, by the title of the process.
var k3sUnits = map[string]string{"k3s server": "k3s", "k3s agent": "k3s-agent"}

// findKubelet looks for a kubelet among the processes of the machine. Any process of a container can have that name, so
// a kubelet in a container is taken only if there is no other. A kubelet may run in a container of another runtime.
func findKubelet(proc string) (k kubelet, runs bool) {
	commands, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "cmdline"))
	for _, path := range commands {
		found, is := kubeletOf(path)
		switch {
		case !is:
		case !inContainer(filepath.Dir(path)):
			return found, true
		case !runs:
			k, runs = found, true
		}
	}
	return k, runs
}

// kubeletOf says whether a process with this file of its arguments is a kubelet.
func kubeletOf(path string) (k kubelet, is bool) {
	data, err := firstBytes(path)
	if err != nil {
		return k, false // the process has ended
	}
	k = kubelet{pid: filepath.Base(filepath.Dir(path)), unit: "kubelet"}
	k.args = strings.Split(strings.TrimRight(string(data), "\x00"), "\x00")
	program := filepath.Base(k.args[0])
	if unit, is := k3sUnits[program]; is {
		k.unit, k.hidden = unit, true
		return k, true
	}
	return k, program == "kubelet"
}

// containerCgroup is in the name of the cgroup of a container of any runtime: its ID.
var containerCgroup = regexp.MustCompile(`[0-9a-f]{64}`)

// inContainer says whether a process is in the cgroup of a container, or may be.
func inContainer(process string) bool {
	cgroups, err := firstBytes(filepath.Join(process, "cgroup"))
	return err != nil || containerCgroup.Match(cgroups)
}

// maxArguments is how many bytes of a process's arguments are read. A process of a container may say that it has
// gigabytes of them (PR_SET_MM_MAP).
const maxArguments = 1 << 20

// firstBytes reads a file of a process's directory in /proc.
func firstBytes(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxArguments))
}

// flagValue is the last value of a flag, which is one word with it or the next; empty: it is not given.
func flagValue(args []string, flag string) (value string) {
	for i, arg := range args[1:] {
		rest, is := strings.CutPrefix(arg, flag)
		if v, ok := strings.CutPrefix(rest, "="); ok && is {
			value = v
		} else if is && rest == "" && i+2 < len(args) {
			value = args[i+2]
		}
	}
	return value
}

// checkStateDisk looks at what is left of the file system of the state, which is small: a tmpfs, most often.
func checkStateDisk(_ context.Context, cfg Config) Finding {
	dir := existing(cfg.State)
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return bad(fmt.Sprintf("%s: %v", dir, err), diskAdvice(dir))
	}
	if err := unwritable(dir); err != nil {
		return bad(fmt.Sprintf("the file system of %s takes no writes: %v", dir, err), diskAdvice(dir))
	}
	return judgeStateDisk(dir, uint64(st.Bsize)*st.Blocks, uint64(st.Bsize)*st.Bavail, st.Files, st.Ffree)
}

// What a few hundred pods take of the state, and what one start takes.
const (
	tightState = 32 << 20
	emptyState = 1 << 20
)

func judgeStateDisk(dir string, size, free, inodes, freeInodes uint64) Finding {
	detail := fmt.Sprintf("%.0f MiB of %.0f MiB free at %s", float64(free)/(1<<20), float64(size)/(1<<20), dir)
	advice := "See what takes it: du -xsh " + dir + "/*. Where it is a tmpfs: mount -o remount,size=… " + dir
	switch {
	case free < emptyState:
		return bad(detail, advice)
	case inodes > 0 && freeInodes*100 < inodes:
		return bad(detail+", but less than 1 % of its inodes", advice)
	case free < tightState:
		return poor(detail, advice)
	}
	return good(detail)
}
