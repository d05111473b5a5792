package security

import (
	"archive/tar"
	"cmp"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	rt "berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// Attacks of an image by the user that it names, or by the databases of users in it, and attacks on what a user
// who is not root may do.

const rootLine = "root:x:0:0:root:/root:/bin/sh\n"

func withUsers(passwd, group string) rt.ImageOption {
	return rt.Layer(rt.File("etc/passwd", 0o644, passwd), rt.File("etc/group", 0o644, group))
}

// whoami is the user and the group that an image's program runs as, or the error by which it is refused.
// The kernel is asked: no program of the image reads a database.
func whoami(t *testing.T, p *nodetest.Pod, ref string, edits ...nodetest.ContainerEdit) (id string, err error) {
	t.Helper()
	c, err := p.TryCreate(append([]nodetest.ContainerEdit{withImage(ref),
		command("grep", "-E", "^[UG]id:", "/proc/self/status")}, edits...)...)
	if err != nil {
		return "", err
	}
	if err := c.TryStart(); err != nil {
		return "", err
	}
	if s := c.WaitExit(); s.ExitCode != 0 {
		t.Fatalf("grep ended with %d: %s", s.ExitCode, c.Log())
	}
	fields := strings.Fields(c.Stdout()) // Uid: real effective saved file, and the same of Gid
	if len(fields) != 10 {
		t.Fatalf("status says %q", fields)
	}
	return fields[2] + ":" + fields[7], nil
}

// CVE-2016-3697 (runc, and so Docker): a number for a user was looked up among the names of the image's /etc/passwd
// first, where an image could give root's IDs to the name "1000".
//
// Seen to fail with the number looked up as a name in userSpec of ocispec/user.go (a "+0" user made of the name's
// entry).
func TestCVE_2016_3697_ANumberIsAName(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	ref := hostile(t, n, withUsers(rootLine+"1000:x:0:0:evil:/:/bin/sh\n0:x:0:0::/:/bin/sh\n",
		"root:x:0:\n1000:x:0:1000\n"), rt.User("1000"))
	for claim, edit := range map[string]nodetest.ContainerEdit{
		"the image's": func(*cri.ContainerConfig) {},
		"the request's": nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
			s.RunAsUser = &cri.Int64Value{Value: 1000}
		}),
		"with a group": as(1000, 1000),
	} {
		id, err := whoami(t, p, ref, edit)
		if err != nil || !strings.HasPrefix(id, "1000:") {
			t.Errorf("%s user 1000 is %q, %v", claim, id, err)
		}
	}
}

// CVE-2024-40635 (containerd): a user of the image beyond 31 bits was cut, so that 4294967296 ran as root,
// though the cluster asks for another user than root.
//
// Seen to fail with the numbers of a user cut to 32 bits in place of refused, in lookUp of ocispec/user.go:
// both for numbers of the image's configuration and for those of its /etc/passwd.
func TestCVE_2024_40635_AUserBeyond32Bits(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	refused := func(claim, ref string, allowed ...string) {
		t.Helper()
		id, err := whoami(t, p, ref)
		if err != nil {
			nodetest.WantCode(t, err, codes.InvalidArgument)
			return
		}
		for _, a := range allowed {
			if id == a {
				return
			}
		}
		t.Errorf("%s runs as %s", claim, id)
	}
	for _, number := range []string{"2147483648",
		"4294967294", "4294967295", "4294967296", "4294967297", "8589934592", "9223372036854775807",
		"9223372036854775808", "18446744073709551616", "-1", "0x0", "1e0", "٠"} {
		allowed := []string{number + ":" + number, number + ":0"} // if it is a user at all, then that one
		refused("user "+number, hostile(t, n, rt.User(number)), allowed...)
		refused("user and group "+number, hostile(t, n, rt.User(number+":"+number)), allowed...)
		refused("group "+number, hostile(t, n, rt.User("1000:"+number)), "1000:"+number)
		refused("uid "+number+" of a name", hostile(t, n, rt.User("evil"),
			withUsers(rootLine+fmt.Sprintf("evil:x:%s:1000::/:/bin/sh\n", number), "")), number+":1000")
		refused("gid "+number+" of a name", hostile(t, n, rt.User("evil"),
			withUsers(rootLine+fmt.Sprintf("evil:x:1000:%s::/:/bin/sh\n", number), "")), "1000:"+number)
		refused("gid "+number+" of a group's name", hostile(t, n, rt.User("1000:evil"),
			withUsers(rootLine, fmt.Sprintf("evil:x:%s:\n", number))), "1000:"+number)
	}
	for _, word := range []string{"abc", "", " 0", "0 ", "0\t"} {
		refused(fmt.Sprintf("uid %q of a name", word), hostile(t, n, rt.User("evil"),
			withUsers(rootLine+fmt.Sprintf("evil:x:%s:1000::/:/bin/sh\n", word), "")))
	}
}

// CVE-2026-46680 (containerd): a number that is none of 32 bits was taken for a name in place of being refused,
// and the image's /etc/passwd gave the name root's IDs.
//
// Seen to fail with the refusal of such numbers taken out of userSpec in ocispec/user.go.
func TestCVE_2026_46680_ANumberTooLargeIsAName(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	for _, number := range []string{"4294967295",
		"4294967296", "99999999999", "9223372036854775808", "99999999999999999999999"} {
		passwd := rootLine + number + ":x:0:0:evil:/:/bin/sh\n"
		group := "root:x:0:\n" + number + ":x:0:\n"
		for _, user := range []string{number, number + ":" + number, "1000:" + number} {
			id, err := whoami(t, p, hostile(t, n, withUsers(passwd, group), rt.User(user)))
			if err != nil {
				nodetest.WantCode(t, err, codes.InvalidArgument)
			} else if strings.HasPrefix(id, "0:") || strings.HasSuffix(id, ":0") {
				t.Errorf("the user %s of an image runs as %s", user, id)
			}
		}
	}
}

// CVE-2026-47262 (containerd): the groups of a user were gathered from an /etc/group of any size, with many groups
// or with many members, and containerd ran out of memory.
//
// Seen to fail with maxDatabase of ocispec/passwd.go raised to 1 GiB.
func TestCVE_2026_47262_GroupsWithoutEnd(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	var many strings.Builder
	for i := range 2_000_000 {
		fmt.Fprintf(&many, "g%d:x:%d:app\n", i, i+1)
	}
	const app = "app:x:1000:1000::/:/bin/sh\n"
	for claim, group := range map[string]string{
		"groups":  many.String(),
		"members": "g:x:5:" + strings.Repeat("m,", 64<<20) + "app\n",
		"a line":  strings.Repeat("x", 64<<20),
	} {
		t.Run(claim, func(t *testing.T) {
			ref := hostile(t, n, withUsers(rootLine+app, group), rt.User("app"))
			nodetest.Pull(t, n, ref)
			same := alive(t, n)
			var err error
			berthd, keeper := peak(t, n, func() { _, err = whoami(t, p, ref) })
			nodetest.WantCode(t, err, codes.InvalidArgument, codes.ResourceExhausted)
			if berthd > 64<<20 || keeper > 64<<20 {
				t.Errorf("berthd took %d MiB and the keeper %d MiB", berthd>>20, keeper>>20)
			}
			same()
		})
	}
}

// hostDatabase attacks with an /etc/passwd that is something else than a file of the image.
func hostDatabase(t *testing.T, n *node.Node, p *nodetest.Pod, claim string, entry rt.Entry) {
	t.Helper()
	t.Run(claim, func(t *testing.T) {
		ref := hostile(t, n, rt.Layer(entry), rt.User("hostuser"))
		nodetest.Pull(t, n, ref)
		same := alive(t, n)
		var id string
		var err error
		begin := time.Now()
		berthd, _ := peak(t, n, func() { id, err = whoami(t, p, ref) })
		if err == nil {
			t.Errorf("a user of the host's is known in the image, as %s", id)
		} else {
			nodetest.WantCode(t, err, codes.InvalidArgument, codes.FailedPrecondition)
		}
		if berthd > 64<<20 {
			t.Errorf("berthd took %d MiB", berthd>>20)
		}
		if took := time.Since(begin); took > node.Patience(time.Minute) {
			t.Errorf("it took %v", took)
		}
		// A number needs no database, and the container starts all the same, or is refused as fast.
		if id, err := whoami(t, p, ref, as(1000, 1000)); err == nil && id != "1000:1000" {
			t.Errorf("with a number it runs as %s", id)
		}
		same()
	})
}

// CVE-2024-9676 (containers/storage, and so podman and CRI-O): an /etc/passwd of the image that is a link was followed
// on the host, where reading a pipe or a device never ends.
//
// Seen to fail with os.ReadFile of the joined path in place of readDatabase in ocispec/user.go.
func TestCVE_2024_9676_TheUserDatabaseIsALink(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	dir := t.TempDir()
	passwd := filepath.Join(dir, "passwd")
	writeFile(t, passwd, []byte(rootLine+"hostuser:x:4242:4242::/:/bin/sh\n"), 0o644)
	hostDatabase(t, n, p, "to a file of the host", rt.Symlink("etc/passwd", passwd))
	hostDatabase(t, n, p, "to a file of the host, climbing", rt.Symlink("etc/passwd", up+passwd))
	hostDatabase(t, n, p, "to a device of the host", rt.Symlink("etc/passwd", "/dev/zero"))
	hostDatabase(t, n, p, "to itself", rt.Symlink("etc/passwd", "passwd"))
	hostDatabase(t, n, p, "by a magic link", rt.Symlink("etc/passwd", "/proc/self/root"+passwd))
	hostDatabase(t, n, p, "a pipe", rt.Device("etc/passwd", tar.TypeFifo, 0, 0))
	hostDatabase(t, n, p, "a device", rt.Device("etc/passwd", tar.TypeChar, 1, 5))
	hostDatabase(t, n, p, "a directory", rt.Dir("etc/passwd", 0o755))
	hostDatabase(t, n, p, "the directory is a link", rt.Symlink("etc", dir))
}

// CVE-2025-4437 (CRI-O): an /etc/passwd of any size was read into memory.
//
// Seen to fail with maxDatabase of ocispec/passwd.go raised to 1 TiB.
func TestCVE_2025_4437_AHugeUserDatabase(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	huge := rt.File("etc/passwd", 0o644, strings.Repeat("\x00", 512<<20)) // holes, once it is unpacked
	hostDatabase(t, n, p, "holes", huge)
	long := rt.File("etc/passwd", 0o644, rootLine+strings.Repeat("x", 200<<20)+"\nhostuser:x:0:0::/:/bin/sh\n")
	hostDatabase(t, n, p, "a line", long)
}

// CVE-2022-36109 (Docker), CVE-2022-2989 (podman), CVE-2022-2990 (buildah), CVE-2022-2995 (CRI-O): the primary group
// of a container's user was not among its supplementary groups. A file that denies a group access could then be read
// by a member of it, who changed the primary group by a set-group-ID program.
//
// Seen to fail with the primary group left out of the groups in user of ocispec/user.go.
func TestCVE_2022_36109_AGroupThatIsDeniedReads(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		denied := filepath.Join(dir, "denied")
		writeFile(t, denied, []byte("secret"), 0o604) // the group may not read, all others may
		if err := os.Chmod(denied, 0o604); err != nil {
			t.Fatal(err)
		}
		group := 1002
		if s.userns {
			group += mappedRoot
		}
		if err := os.Chown(denied, 0, group); err != nil {
			t.Fatal(err)
		}
		program := rt.Layer(rt.File("other-group", 0o2755, string(intruderProgram(t))).Owned(0, 2000),
			rt.File("etc/passwd", 0o644, rootLine+"app:x:1001:1002::/:/bin/sh\n"),
			rt.File("etc/group", 0o644, "app:x:1002:\nother:x:2000:\n"))
		for claim, edit := range map[string]nodetest.ContainerEdit{
			"a name": nodetest.Security(func(s *cri.LinuxContainerSecurityContext) { s.RunAsUsername = "app" }),
			"a number": nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
				s.RunAsUser = &cri.Int64Value{Value: 1001}
			}),
			"numbers": as(1001, 1002),
			"strict": nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
				s.RunAsUser, s.RunAsGroup = &cri.Int64Value{Value: 1001}, &cri.Int64Value{Value: 1002}
				s.SupplementalGroupsPolicy = cri.SupplementalGroupsPolicy_Strict
			}),
		} {
			t.Run(claim, func(t *testing.T) {
				c := s.pod(t, n).Run(withImage(hostile(t, n, program)), volume(dir, "/v"), edit)
				for _, run := range []string{"cat /v/denied", "/other-group read /v/denied"} {
					if r, err := c.Exec(60, strings.Fields(run)...); err != nil || r.ExitCode == 0 {
						t.Errorf("%s: %q, %v", run, r.GetStdout(), err)
					}
				}
			})
		}
	})
}

// CVE-2023-25173 (containerd): the supplementary groups of a user were not those that the image's databases
// and the request give, so that a rule by groups let the wrong ones through.
//
// The kernel says which groups each process has, also an exec. Seen to fail with the primary group left out
// of the groups in user of ocispec/user.go.
func TestCVE_2023_25173_GroupsThatAreNotAsAsked(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		databases := withUsers(rootLine+"app:x:1001:1002::/:/bin/sh\n", "app:x:1002:\nmember:x:3000:app\nother:x:3001:root\n")
		asked := nodetest.Security(func(s *cri.LinuxContainerSecurityContext) { s.SupplementalGroups = []int64{4000} })
		strict := nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
			s.SupplementalGroupsPolicy = cri.SupplementalGroupsPolicy_Strict
		})
		for claim, c := range map[string]struct {
			user  string // of the image
			edits []nodetest.ContainerEdit
			want  string
		}{
			"a name":             {user: "app", want: "1002 3000"},
			"a number":           {user: "1001", want: "1002 3000"},
			"a group":            {user: "app:other", want: "3000 3001"},
			"unknown":            {user: "5000:6000", want: "6000"},
			"of the request":     {edits: []nodetest.ContainerEdit{as(1001, 2000)}, want: "2000 3000"},
			"with asked ones":    {user: "app", edits: []nodetest.ContainerEdit{asked}, want: "1002 3000 4000"},
			"strictly the asked": {user: "app", edits: []nodetest.ContainerEdit{asked, strict}, want: "1002 4000"},
			"strictly none":      {user: "app", edits: []nodetest.ContainerEdit{strict}, want: "1002"},
		} {
			t.Run(claim, func(t *testing.T) {
				running := s.pod(t, n).Run(append([]nodetest.ContainerEdit{withImage(hostile(t, n, databases, rt.User(c.user)))},
					c.edits...)...)
				for process, status := range map[string]string{
					"the init process": running.Sh("cat /proc/1/status"), "an exec": running.Sh("cat /proc/self/status"),
				} {
					if got := groupsOf(status); got != c.want {
						t.Errorf("%s has the groups %q, not %q", process, got, c.want)
					}
				}
			})
		}
	})
}

// groupsOf are the supplementary groups of a process, as /proc says.
func groupsOf(status string) string {
	for line := range strings.Lines(status) {
		if groups, ok := strings.CutPrefix(line, "Groups:"); ok {
			ids := strings.Fields(groups)
			slices.SortFunc(ids, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
			return strings.Join(ids, " ")
		}
	}
	return "none: " + status
}

// capabilitySets are those of a process, by name.
func capabilitySets(t *testing.T, status string) map[string]uint64 {
	t.Helper()
	sets := map[string]uint64{}
	for line := range strings.Lines(status) {
		name, value, ok := strings.Cut(line, ":")
		if !ok || !strings.HasPrefix(name, "Cap") {
			continue
		}
		set, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		sets[name] = set
	}
	if len(sets) != 5 {
		t.Fatalf("status %q has %d sets of capabilities", status, len(sets))
	}
	return sets
}

// CVE-2022-24769 (Docker and containerd), CVE-2022-27649 (podman), CVE-2022-27650 (crun), CVE-2022-27651 (buildah),
// CVE-2022-27652 (CRI-O): containers began with inheritable capabilities. A program whose file has inheritable
// capabilities gave them to a user who should have none.
//
// Seen to fail with the bounding set as the inheritable one in capabilities of ocispec/capabilities.go.
func TestCVE_2022_24769_InheritableCapabilities(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		ref := heirs(t, n)
		for _, uid := range []int64{0, 1000} {
			p := s.pod(t, n)
			noneInherited(t, uid, "init process", p.Output("cat /proc/self/status", withImage(ref), as(uid, uid)))
			noneInherited(t, uid, "heir", p.Output("/heir/busybox cat /proc/self/status", withImage(ref), as(uid, uid)))
		}
	})
}

// CVE-2022-29162 (runc exec): processes that were executed in a running container had inheritable capabilities,
// though its first one had none.
//
// Seen to fail with the bounding set as the inheritable one in join.go of the keeper's server.
func TestCVE_2022_29162_AnExecInheritsCapabilities(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		ref := heirs(t, n)
		for _, uid := range []int64{0, 1000} {
			c := s.pod(t, n).Run(withImage(ref), as(uid, uid), capabilities("SYS_PTRACE", "NET_ADMIN"))
			noneInherited(t, uid, "exec", c.Sh("cat /proc/self/status"))
			noneInherited(t, uid, "heir", c.Sh("/heir/busybox cat /proc/self/status"))
		}
	})
}

// heirs is an image with a program whose file has all capabilities as inheritable ones.
func heirs(t *testing.T, n *node.Node) string {
	t.Helper()
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	// struct vfs_cap_data of revision 2: nothing permitted, all inheritable, and effective when executed.
	attribute := make([]byte, 20)
	binary.LittleEndian.PutUint32(attribute[0:], 0x02000000|1)
	binary.LittleEndian.PutUint32(attribute[8:], 0xffffffff)
	return hostile(t, n,
		rt.Layer(rt.File("heir/busybox", 0o755, string(busybox)).Xattr("security.capability", string(attribute))))
}

// noneInherited fails the test if a process has inheritable or ambient capabilities, or one that is not of root
// any at all.
func noneInherited(t *testing.T, uid int64, where, status string) {
	t.Helper()
	sets := capabilitySets(t, status)
	if sets["CapInh"] != 0 || sets["CapAmb"] != 0 {
		t.Errorf("user %d, %s: inheritable %x, ambient %x", uid, where, sets["CapInh"], sets["CapAmb"])
	}
	if uid != 0 && (sets["CapEff"] != 0 || sets["CapPrm"] != 0) {
		t.Errorf("user %d, %s: effective %x, permitted %x", uid, where, sets["CapEff"], sets["CapPrm"])
	}
}

// CVE-2016-8867 (Docker), CVE-2018-10856 (podman), CVE-2018-1000400 (CRI-O), CVE-2021-20188 (podman, privileged
// containers): a user who is not root kept root's capabilities, and read and wrote files of everybody.
//
// Seen to fail with the capabilities as ambient ones in capabilities of ocispec/capabilities.go.
func TestCVE_2018_10856_AUserWithRootsCapabilities(t *testing.T) {
	attack := func(t *testing.T, c *nodetest.Container) {
		t.Helper()
		for where, status := range map[string]string{"init process": c.Sh("cat /proc/1/status"),
			"exec": c.Sh("cat /proc/self/status")} {
			if sets := capabilitySets(t, status); sets["CapEff"]|sets["CapPrm"]|sets["CapAmb"]|sets["CapInh"] != 0 {
				t.Errorf("the %s has capabilities: %v", where, sets)
			}
		}
		if r, err := c.Exec(60, "sh", "-c", "cat /etc/shadow; echo x >>/etc/passwd; mount -t tmpfs x /mnt"); err != nil ||
			len(r.Stdout) > 0 || r.ExitCode == 0 {
			t.Errorf("it read or wrote root's files: %q, %v", r.GetStdout(), err)
		}
	}
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		attack(t, s.pod(t, n).Run(withImage(hostile(t, n)), as(1000, 1000)))
		attack(t, s.pod(t, n).Run(withImage(hostile(t, n, rt.User("user"))), capabilities("SYS_ADMIN", "DAC_OVERRIDE")))
	})
	t.Run("privileged", func(t *testing.T) {
		n := nodetest.Shared(t)
		p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true })
		attack(t, p.Run(withImage(hostile(t, n)), as(1000, 1000),
			nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
				s.Privileged = true
			})))
	})
}

// CVE-2022-4318 and CVE-2026-15809 (CRI-O): for a user that /etc/passwd does not have a line was added, with the value
// of HOME in it; a line break in that added a second line of the attacker's choice. (The first mend looked
// for a backslash and an n.)
//
// Berth writes no /etc/passwd. What it writes for a pod, from names that the request gives, must not take line breaks
// either. Seen to fail with a line of the user added to /etc/passwd at a start, and with the check of host names taken
// out of cri/request/names.go.
func TestCVE_2022_4318_ALineBreakAddsAUser(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		const line = "evil::0:0::/:/bin/sh"
		ref := hostile(t, n)
		for _, br := range []string{"\n", "\r", "\r\n", `\n`, "\u2028", "\v"} {
			c := s.pod(t, n).Run(withImage(ref), as(4242, 0), func(c *cri.ContainerConfig) {
				for _, key := range []string{"HOME", "USER", "SHELL", "HOSTNAME"} {
					c.Envs = append(c.Envs, &cri.KeyValue{Key: key, Value: []byte("/x" + br + line + br)})
				}
			})
			if got := c.Sh("cat /etc/passwd /etc/group /etc/hosts /etc/hostname /etc/resolv.conf"); strings.Contains(got,
				"evil") {
				t.Errorf("with the break %q a file has the attacker's line:\n%s", br, got)
			}
		}
	})
	t.Run("the pod's files", func(t *testing.T) {
		n := nodetest.Shared(t)
		const line = "6.6.6.6 evil"
		for claim, edit := range map[string]nodetest.PodEdit{
			"host name": func(c *cri.PodSandboxConfig) { c.Hostname = "x\n" + line },
			"server": func(c *cri.PodSandboxConfig) {
				c.DnsConfig = &cri.DNSConfig{Servers: []string{"1.1.1.1\nnameserver 6.6.6.6"}}
			},
			"search": func(c *cri.PodSandboxConfig) {
				c.DnsConfig = &cri.DNSConfig{Searches: []string{"a\nnameserver 6.6.6.6"}}
			},
			"option": func(c *cri.PodSandboxConfig) {
				c.DnsConfig = &cri.DNSConfig{Options: []string{"a\nnameserver 6.6.6.6"}}
			},
		} {
			r, err := n.Runtime.RunPodSandbox(nodetest.Context(t),
				&cri.RunPodSandboxRequest{Config: nodetest.PodConfig(n, edit)})
			nodetest.WantCode(t, err, codes.InvalidArgument)
			if err == nil {
				t.Errorf("a line break in a %s is accepted", claim)
				_, _ = n.Runtime.RemovePodSandbox(nodetest.Context(t), &cri.RemovePodSandboxRequest{PodSandboxId: r.PodSandboxId})
			}
		}
	})
}
