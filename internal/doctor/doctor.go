package doctor

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Level is how well a thing is.
type Level string

const (
	Good Level = "good"
	Poor Level = "poor" // pods run, but something that a node should have is lacking
	Bad  Level = "bad"  // pods cannot run
)

// Finding is the result of one check.
type Finding struct {
	Subject string `json:"subject"`
	Level   Level  `json:"level"`
	Detail  string `json:"detail"`
	Advice  string `json:"advice,omitempty"` // lines; empty where all is well
}

// Config says what is looked at.
type Config struct {
	Version string // of this command; empty: it is not compared
	Socket  string // path
	Root    string // the daemon's directory for data; it need not exist
	State   string // the daemon's directory for what a reboot may lose; it need not exist
	CNI
	// ContainerdVersion asks on a socket which version of containerd's API is answered there. Nil: nobody can be asked.
	ContainerdVersion func(ctx context.Context, socket string) (string, error)
	Daemon            *Daemon // that runs, in the place of the directories above; nil: none could be asked
	Given             Given
	Proc              string // where processes are; empty: /proc
}

// Given says which directories are looked at also where the daemon has others.
type Given struct{ Root, State, CNIConfDir bool }

// CNI is where CNI's configurations and plugins are, and which bridge takes their place, as the daemon's configuration
// has it.
type CNI struct {
	CNIConfDir string
	CNIBinDirs []string // empty: the default ones
	CNINetwork string   // the one that pods are connected to; empty: the first
	RequireCNI bool     // the built-in bridge does not take CNI's place
	Bridge     string   // the interface of the built-in bridge; empty: berth0
}

func good(detail string) Finding         { return Finding{Level: Good, Detail: detail} }
func poor(detail, advice string) Finding { return Finding{Level: Poor, Detail: detail, Advice: advice} }
func bad(detail, advice string) Finding  { return Finding{Level: Bad, Detail: detail, Advice: advice} }

// Examine runs all checks, in the order of what depends on what.
func Examine(ctx context.Context, cfg Config) []Finding {
	if cfg.Daemon != nil {
		cfg = cfg.Daemon.overlay(cfg)
	}
	var findings []Finding
	for _, check := range []struct {
		subject string
		look    func(context.Context, Config) Finding
	}{
		{"user", checkUser},
		{"kernel", checkKernel},
		{"namespaces", checkNamespaces},
		{"cgroups", checkCgroups},
		{"overlayfs", checkOverlay},
		{"seccomp", checkSeccomp},
		{"security modules", checkModules},
		{"network", checkNetwork},
		{"disk", checkDisk},
		{"disk of the state", checkStateDisk},
		{"images on disk", checkSync},
		{"user namespaces", checkState},
		{"inotify", checkInotify},
		{"processes", checkProcesses},
		{"files", checkFiles},
		{"keys", checkKeys},
		{"programs", checkPrograms},
		{"socket", checkSocket},
		{"daemon", checkDaemon},
		{"configuration", checkConfiguration},
		{"registries", checkRegistries},
		{"image verifiers", checkVerifiers},
		{"snapshotter", checkSnapshotter},
		{"CRIU", checkCRIU},
		{"NRI plugins", checkNRI},
		{"kubelet", checkKubelet},
		{"container metrics", checkMetrics},
	} {
		finding := check.look(ctx, cfg)
		finding.Subject = check.subject
		findings = append(findings, finding)
	}
	return findings
}

// procAdvice is for what /proc should say and does not.
const procAdvice = "See how /proc is mounted: findmnt /proc. A container that hides parts of it is no place for berthd."

// diskAdvice is for a directory whose file system does not answer.
func diskAdvice(dir string) string {
	return "See what file system it is on: findmnt -T " + dir + "\nLook for errors of the disk: dmesg --level=err,warn"
}

func isRoot() bool { return os.Geteuid() == 0 }

// checkUser says whether this command may try things out, and what the daemon started like it could not do.
func checkUser(context.Context, Config) Finding {
	if !isRoot() {
		return poor("not root: some checks are skipped", "Run it as root (sudo berth doctor). berthd itself runs as root.")
	}
	have, err := effectiveCapabilities()
	if err != nil {
		return poor(err.Error(), procAdvice)
	}
	var lacking, vital string
	for _, c := range []struct {
		bit   int
		name  string
		vital bool
	}{
		{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN", true}, {unix.CAP_NET_ADMIN, "CAP_NET_ADMIN", true},
		{unix.CAP_SETUID, "CAP_SETUID", true},
		{unix.CAP_CHOWN, "CAP_CHOWN", true}, {unix.CAP_MKNOD, "CAP_MKNOD", true},
		{unix.CAP_SYS_PTRACE, "CAP_SYS_PTRACE", false},
		{unix.CAP_SYS_RESOURCE, "CAP_SYS_RESOURCE", false},
	} {
		if have&(1<<c.bit) == 0 {
			lacking += " " + c.name
			if c.vital {
				vital += " " + c.name
			}
		}
	}
	switch {
	case vital != "":
		return bad("root without"+vital, "Run berthd outside of a container, or give its container these capabilities.\n"+
			"See what has taken them away: grep CapBnd /proc/1/status /proc/self/status")
	case lacking != "":
		return poor("root without"+lacking,
			"oom_score_adj below the daemon's own and higher hard limits cannot be set; pods run without.\n"+
				"See what has taken it away: grep CapBnd /proc/1/status /proc/self/status. A systemd unit has it by default.")
	}
	return good("root with all capabilities that are needed")
}

func checkNamespaces(context.Context, Config) Finding {
	var missing string
	for _, name := range []string{"net", "ipc", "uts", "pid", "mnt", "cgroup", "user"} {
		if _, err := os.Lstat("/proc/self/ns/" + name); errors.Is(err, os.ErrNotExist) {
			missing += " " + name
		}
	}
	if missing != "" {
		return bad("the kernel lacks namespaces:"+missing,
			"See what the kernel was built with: grep _NS= /boot/config-$(uname -r)\n"+
				"Use a kernel with CONFIG_NAMESPACES and all kinds of them, as distributions build it: "+installKernel)
	}
	return good("net, ipc, uts, pid, mnt, cgroup, user")
}
