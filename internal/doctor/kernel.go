package doctor

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/apparmor"
)

// Versions that matter: openat2, pidfds and close_range are there from 5.9 on; ID-mapped mounts of overlay from 5.19;
// the exit code of a process whose parent is gone (PIDFD_GET_INFO with PIDFD_INFO_EXIT) from 6.15.
var (
	oldestKernel = version{5, 9}
	exitOfOrphan = version{6, 15}
)

// installKernel are the commands that install the newest kernel of a distribution.
const installKernel = "apt-get install linux-image-" + runtime.GOARCH + " (Debian), dnf upgrade kernel (Fedora)"

type version struct{ major, minor int }

func (v version) before(o version) bool {
	return v.major < o.major || v.major == o.major && v.minor < o.minor
}

func (v version) String() string { return fmt.Sprintf("%d.%d", v.major, v.minor) }

// parseVersion reads the beginning of a kernel's release, such as 6.12.38-cloud-amd64.
func parseVersion(release string) (version, error) {
	var v version
	if _, err := fmt.Sscanf(release, "%d.%d", &v.major, &v.minor); err != nil {
		return v, fmt.Errorf("kernel release %q: %w", release, err)
	}
	return v, nil
}

func checkKernel(context.Context, Config) Finding {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return bad(err.Error(), "See whether the kernel tells its version: uname -r")
	}
	release := unix.ByteSliceToString(name.Release[:])
	return judgeKernel(release)
}

func judgeKernel(release string) Finding {
	v, err := parseVersion(release)
	switch {
	case err != nil:
		return poor(err.Error(), "See whether it is "+oldestKernel.String()+" or newer: uname -r")
	case v.before(oldestKernel):
		return bad(release, "Berth needs Linux "+oldestKernel.String()+" or newer. Install a newer one and reboot: "+
			installKernel)
	case v.before(exitOfOrphan):
		return poor(release, fmt.Sprintf("From Linux %s on, exit codes survive a kill of berth-keeper; "+
			"here such containers report 255 (KeeperLost).\nA newer kernel and a reboot change this: %s", exitOfOrphan,
			installKernel))
	}
	return good(release)
}

func effectiveCapabilities() (uint64, error) {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "CapEff:"); ok {
			return strconv.ParseUint(strings.TrimSpace(rest), 16, 64)
		}
	}
	return 0, fmt.Errorf("/proc/self/status names no capabilities")
}

func checkSeccomp(context.Context, Config) Finding {
	data, err := os.ReadFile("/proc/sys/kernel/seccomp/actions_avail")
	if err != nil {
		return bad("the kernel has no seccomp filters",
			"Until it has them only containers with seccomp Unconfined run.\n"+
				"See what the kernel was built with: grep SECCOMP /boot/config-$(uname -r)\n"+
				"Use a kernel with CONFIG_SECCOMP_FILTER, as distributions build it: "+installKernel)
	}
	return good(strings.TrimSpace(string(data)))
}

func checkModules(context.Context, Config) Finding {
	data, err := os.ReadFile("/sys/kernel/security/lsm")
	if err != nil {
		if apparmor.OutOfReach() {
			return poor("the kernel has AppArmor, but securityfs is not mounted, so containers get no profile of their own",
				"Mount it, and start berthd again: mount -t securityfs securityfs /sys/kernel/security\n"+
					"In a container leave it as it is: the profile of that container holds for all in it.")
		}
		return good("neither AppArmor nor SELinux is seen; containers that name no profile do not need them")
	}
	_, err = apparmor.Parser()
	return judgeModules(strings.TrimSpace(string(data)), err)
}

// judgeModules judges the security modules that the kernel has. parser is why there is no program that loads profiles
// of AppArmor.
func judgeModules(list string, parser error) Finding {
	var named []string
	for _, m := range []struct{ module, name string }{{"apparmor", "AppArmor"}, {"selinux", "SELinux"}} {
		for part := range strings.SplitSeq(list, ",") {
			if part == m.module {
				named = append(named, m.name)
			}
		}
	}
	if len(named) == 0 {
		return good("neither AppArmor nor SELinux is on; containers that name no profile do not need them")
	}
	if parser != nil && slices.Contains(named, "AppArmor") {
		return poor(strings.Join(named, ", ")+"; but "+parser.Error()+
			", so containers that name no AppArmor profile get none",
			"apt-get install apparmor (Debian, Ubuntu), zypper install apparmor-parser (SUSE). "+
				"And then: systemctl reload berthd")
	}
	return good(strings.Join(named, ", "))
}
