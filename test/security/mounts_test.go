package security

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/pouch"
	rt "berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// Attacks on the set-up of a container by links that lead elsewhere: of the image, and of volumes in which another
// container exchanges them meanwhile.

// openDir is a directory of the host that containers with and without a user namespace may write to.
func openDir(t *testing.T, names ...string) string {
	t.Helper()
	dir := publicDir(t)
	for _, name := range append([]string{""}, names...) {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(at, 0o777); err != nil {
			t.Fatal(err)
		}
		for up := at; len(up) >= len(dir); up = filepath.Dir(up) {
			if err := os.Chmod(up, 0o777); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// race is an attack by a container that exchanges the names a and b of a volume, while further containers of its pod
// with the same volume are set up.
type race struct {
	a, b  string // in the volume
	dir   string // the volume
	image string
	// victim makes a container whose set-up looks one of the names up.
	victim []nodetest.ContainerEdit
	// check looks at a container that has been started.
	check func(c *nodetest.Container, pid int)
	// after looks at the host after each attempt, started or not.
	after func()
	// refusals are the codes of a start that the race made fail; a set-up that notices is as good
	// as one that is not fooled.
	refused func(err error)
}

func (r *race) run(t *testing.T, n *node.Node, s setup) {
	t.Helper()
	p := s.pod(t, n)
	racer := p.Run(withImage(intruderImage(t, n)), volume(r.dir, "/v"),
		command("/intruder", "exchange", "/v/"+r.a, "/v/"+r.b))
	racer.WaitLog("exchanging")
	started, failed := 0, map[string]int{}
	again(t, func(int) {
		c, err := p.TryCreate(append([]nodetest.ContainerEdit{withImage(r.image)}, r.victim...)...)
		if err == nil {
			err = c.TryStart()
		}
		if err == nil {
			started++
			r.check(c, initProcess(t, c))
		} else {
			failed[strings.Join(strings.Fields(err.Error())[4:], " ")]++
			if r.refused != nil {
				r.refused(err)
			}
		}
		if r.after != nil {
			r.after()
		}
		if c != nil {
			c.Remove()
		}
	})
	racer.Stop(30)
	if got := racer.Stdout(); !strings.Contains(got, "exchanged ") ||
		strings.HasSuffix(strings.TrimSpace(got), "exchanged 0") {
		t.Errorf("nothing was exchanged: %s", racer.Log())
	}
	t.Logf("%d started; %s", started, strings.Join(strings.Fields(racer.Stdout()), " "))
	for _, why := range keysOf(failed) {
		t.Logf("%d failed: %s", failed[why], why)
	}
}

func keysOf(m map[string]int) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}

// placed are the places in a container where a directory of the host is mounted.
func placed(t *testing.T, pid int, host string) (points []string) {
	t.Helper()
	mounts, err := mountsOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		if m.Root == host || strings.HasPrefix(m.Root, host+"/") {
			points = append(points, m.Mountpoint)
		}
	}
	return points
}

// notOnHost fails the test if a directory of the host is mounted anywhere on the host, or anything on it.
func notOnHost(t *testing.T, n *node.Node, dirs ...string) {
	t.Helper()
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		for _, dir := range dirs {
			if m.Root == dir || m.Mountpoint == dir || strings.HasPrefix(m.Mountpoint, dir+"/") {
				t.Errorf("%s is mounted on the host, at %s", m.Root, m.Mountpoint)
			}
		}
	}
}

// several mounts a directory at so many places below a path.
func several(host, at string, count int) nodetest.ContainerEdit {
	return func(c *cri.ContainerConfig) {
		for i := range count {
			c.Mounts = append(c.Mounts, &cri.Mount{HostPath: host, ContainerPath: fmt.Sprintf("%s%d", at, i)})
		}
	}
}

// CVE-2021-30465 (runc): a mount's target was looked up inside the root of the container and then used by its path.
// A second container of the pod exchanged a directory of a shared volume with a link in between, and the mount went
// to where the link led on the host; CVE-2026-42306 is the same in `docker cp`.
//
// Seen to fail with RESOLVE_IN_ROOT taken out of open_in_root in stage/setup.c, and, so that the escape is one,
// with the set-up in a copy of the host's mount namespace.
func TestCVE_2021_30465_AMountFollowsAnExchangedLink(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		b := newBait(t)
		for claim, link := range map[string]string{
			"to a directory of the host": b.path, "climbing": strings.TrimPrefix(up+b.path, "../"), "to the root": "/",
			"by a magic link": "/proc/1/root" + b.path,
		} {
			t.Run(claim, func(t *testing.T) {
				dir, mounted := openDir(t, "d"), openDir(t)
				if err := os.Symlink(link, filepath.Join(dir, "l")); err != nil {
					t.Fatal(err)
				}
				r := &race{a: "d", b: "l", dir: dir, image: node.Busybox,
					victim: []nodetest.ContainerEdit{volume(dir, "/v"), several(mounted, "/v/d/m", 64)},
					check: func(c *nodetest.Container, pid int) {
						confined(t, c, dir, mounted)
						inside := path.Join("/", strings.TrimPrefix(link, "/proc/1/root"))
						for _, at := range placed(t, pid, mounted) {
							if !strings.HasPrefix(at, "/v/") && !strings.HasPrefix(at, path.Join(inside, "m")) {
								t.Errorf("a mount is at %s", at)
							}
						}
					},
					after: func() { b.check(t); notOnHost(t, n, mounted, b.path) },
				}
				r.run(t, n, s)
			})
		}
	})
}

// CVE-2024-45310 (runc): the directories and files on which something is mounted are made where they are missing.
// While they were made, a directory of a shared volume was exchanged with a link, and they came to be on the host.
// CVE-2026-41568 is the same in `docker cp`, and CVE-2026-88264 in crun, for /dev/console.
//
// Seen to fail as TestCVE_2021_30465 was.
func TestCVE_2024_45310_AMountPointIsMadeOnTheHost(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		b := newBait(t)
		dir, mounted := openDir(t, "d"), openDir(t)
		file := filepath.Join(mounted, "file")
		writeFile(t, file, []byte("x"), 0o666)
		if err := os.Symlink(b.path, filepath.Join(dir, "l")); err != nil {
			t.Fatal(err)
		}
		serial := 0
		r := &race{a: "d", b: "l", dir: dir, image: node.Busybox,
			victim: []nodetest.ContainerEdit{volume(dir, "/v"), func(c *cri.ContainerConfig) {
				serial++ // what was made for the last one is still there
				for i := range 32 {
					at := fmt.Sprintf("/v/d/new%d-%d", serial, i)
					c.Mounts = append(c.Mounts, &cri.Mount{HostPath: mounted, ContainerPath: at + "/a/b/c"},
						&cri.Mount{HostPath: file, ContainerPath: at + "-file"})
				}
			}},
			check: func(c *nodetest.Container, _ int) { confined(t, c, dir, mounted) },
			after: func() { b.check(t) },
		}
		r.run(t, n, s)
	})
}

// elsewhere are images whose own directory is a link to one of the host.
func elsewhere(t *testing.T, name string, attack func(t *testing.T, n *node.Node, s setup, b *bait, ref string)) {
	t.Helper()
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		for _, claim := range []string{"absolute", "climbing"} {
			t.Run(claim, func(t *testing.T) {
				b := newBait(t)
				// What a runtime would remove or replace has to be there.
				for _, file := range []string{"ptmx", "console", "null", "mtab", "hosts"} {
					writeFile(t, filepath.Join(b.path, file), []byte(b.secret), 0o666)
				}
				b.before = b.look(t)
				link := b.path
				if claim == "climbing" {
					link = up + b.path
				}
				attack(t, n, s, b, hostile(t, n, rt.Layer(rt.Symlink(name, link))))
				b.check(t)
			})
		}
	})
}

// startOrRefuse starts a container, if Berth does, and looks at it.
func startOrRefuse(t *testing.T, p *nodetest.Pod, look func(c *nodetest.Container), edits ...nodetest.ContainerEdit) {
	t.Helper()
	c, err := p.TryCreate(edits...)
	if err == nil {
		err = c.TryStart()
	}
	if err == nil {
		look(c)
	} else {
		nodetest.WantCode(t, err, codes.InvalidArgument, codes.FailedPrecondition)
		t.Logf("refused: %v", err)
	}
	if c != nil {
		c.Remove()
	}
}

// CVE-2026-41579 (runc): with a /dev of the image that is a link, links such as /dev/fd were made in a directory
// of the host, and a file ptmx there was deleted.
//
// Seen to fail with the path of a link in place of its directory's descriptor in do_link of stage/setup.c, in a copy
// of the host's mount namespace.
func TestCVE_2026_41579_DevIsALink(t *testing.T) {
	elsewhere(t, "dev", func(t *testing.T, n *node.Node, s setup, b *bait, ref string) {
		startOrRefuse(t, s.pod(t, n), func(c *nodetest.Container) {
			confined(t, c)
			b.unread(t, "/dev", c.Sh("cat /dev/secret 2>/dev/null; :"))
		}, withImage(ref))
	})
}

// CVE-2024-5154 (CRI-O): with an /etc of the image that is a link, the link /etc/mtab was made in a directory
// of the host.
//
// What Berth puts into /etc are the pod's files. Seen to fail as TestCVE_2026_41579 was, by the mount points of these.
func TestCVE_2024_5154_EtcIsALink(t *testing.T) {
	elsewhere(t, "etc", func(t *testing.T, n *node.Node, s setup, b *bait, ref string) {
		startOrRefuse(t, s.pod(t, n), func(c *nodetest.Container) {
			confined(t, c)
			b.unread(t, "/etc", c.Sh("cat /etc/secret 2>/dev/null; :"))
		}, withImage(ref))
	})
}

// CVE-2019-18837 (crun): targets of an image that are links were opened outside of the container. Every directory
// in which something is put or mounted, as a link to the host.
//
// Seen to fail as TestCVE_2021_30465 was.
func TestCVE_2019_18837_EveryDirectoryIsALink(t *testing.T) {
	for _, name := range []string{"sys", "tmp", "root", "data"} {
		t.Run(name, func(t *testing.T) {
			elsewhere(t, name, func(t *testing.T, n *node.Node, s setup, b *bait, ref string) {
				dir := openDir(t)
				startOrRefuse(t, s.pod(t, n), func(c *nodetest.Container) { confined(t, c, dir) },
					withImage(ref), volume(dir, "/data/v"), func(c *cri.ContainerConfig) { c.WorkingDir = "/root/new/dir" })
			})
		})
	}
}

// CVE-2026-55686 (podman): the working directory that an image names was made on the host, if a link of the image led
// there.
//
// Seen to fail with mkdir by the path, in a copy of the host's mount namespace, in do_directory of stage/setup.c.
func TestCVE_2026_55686_TheWorkingDirectoryIsMadeOnTheHost(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		b := newBait(t)
		for claim, dir := range map[string]string{
			"absolute": "/l/new", "climbing": "/c/new/er", "to a link in it": "/l/../l/./new", "by a magic link": "/m/new",
		} {
			ref := hostile(t, n, rt.Layer(rt.Symlink("l", b.path), rt.Symlink("c", up+b.path),
				rt.Symlink("m", "/proc/self/root"+b.path)),
				rt.WorkingDir(dir))
			t.Run(claim, func(t *testing.T) {
				startOrRefuse(t, s.pod(t, n), func(c *nodetest.Container) {
					confined(t, c)
					if got := c.Sh("pwd"); got != b.path+strings.TrimPrefix(path.Clean(dir), path.Dir(path.Clean(dir))) &&
						!strings.HasPrefix(got, b.path) {
						t.Errorf("it works in %s", got)
					}
				}, withImage(ref))
				b.check(t)
			})
		}
		t.Run("exchanged", func(t *testing.T) {
			dir := openDir(t, "d")
			if err := os.Symlink(b.path, filepath.Join(dir, "l")); err != nil {
				t.Fatal(err)
			}
			serial := 0
			r := &race{a: "d", b: "l", dir: dir, image: node.Busybox,
				victim: []nodetest.ContainerEdit{volume(dir, "/v"), func(c *cri.ContainerConfig) {
					serial++
					c.WorkingDir = fmt.Sprintf("/v/d/new%d/a/b", serial)
				}},
				check: func(c *nodetest.Container, _ int) { confined(t, c, dir) },
				after: func() { b.check(t) },
			}
			r.run(t, n, s)
		})
	})
}

// CVE-2019-19921 (runc): /proc of the image was a link into a volume. Another container put a directory of its own
// where the container's /proc was to be mounted, so that masks, profiles and labels went to the wrong files.
//
// Seen to fail with OP_PLAIN_TARGET ignored in open_target and note_proc taken out, in stage/setup.c.
func TestCVE_2019_19921_ProcIsALinkIntoAVolume(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		dir := openDir(t, "p/self/attr", "p/sys/kernel", "p/1", "q")
		writeFile(t, filepath.Join(dir, "p/self/attr/exec"), nil, 0o666)
		for claim, link := range map[string]string{"absolute": "/v/p", "climbing": "../v/p", "to another link": "/v/l",
			"to itself": "./proc"} {
			t.Run(claim, func(t *testing.T) {
				ref := hostile(t, n, rt.Layer(rt.Symlink("proc", link)))
				startOrRefuse(t, s.pod(t, n), func(c *nodetest.Container) { confined(t, c, dir) },
					withImage(ref), volume(dir, "/v"))
			})
		}
		t.Run("exchanged", func(t *testing.T) {
			r := &race{a: "p", b: "q", dir: dir, image: hostile(t, n, rt.Layer(rt.Symlink("proc", "/v/p"))),
				victim: []nodetest.ContainerEdit{volume(dir, "/v")},
				check:  func(c *nodetest.Container, _ int) { confined(t, c, dir) },
			}
			r.run(t, n, s)
		})
	})
}

// CVE-2023-27561 (runc): the mend of CVE-2019-19921 was undone by a later one: a link at /proc or /sys of the image
// was followed again when it led inside the root, to a directory of a volume that other containers exchange meanwhile.
//
// Seen to fail as TestCVE_2019_19921 was.
func TestCVE_2023_27561_ProcAndSysAreLinksThatAreExchanged(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		for _, name := range []string{"proc", "sys"} {
			t.Run(name, func(t *testing.T) {
				dir := openDir(t, "d/fs/cgroup", "d/self/attr", "d/sys/kernel")
				if err := os.Symlink("/", filepath.Join(dir, "l")); err != nil {
					t.Fatal(err)
				}
				r := &race{a: "d", b: "l", dir: dir, image: hostile(t, n, rt.Layer(rt.Symlink(name, "v/d"))),
					victim: []nodetest.ContainerEdit{volume(dir, "/v")},
					check: func(c *nodetest.Container, pid int) {
						confined(t, c, dir)
						isKernels(t, pid, name)
					},
				}
				r.run(t, n, s)
			})
		}
	})
}

// isKernels: what a process has at /proc or /sys is the kernel's.
func isKernels(t *testing.T, pid int, name string) {
	t.Helper()
	var st unix.Statfs_t
	magic := map[string]int64{"proc": unix.PROC_SUPER_MAGIC, "sys": unix.SYSFS_MAGIC}[name]
	if err := unix.Statfs(fmt.Sprintf("/proc/%d/root/%s", pid, name), &st); err != nil || st.Type != magic {
		t.Errorf("on /%s is a file system of type %x, %v", name, st.Type, err)
	}
}

// CVE-2019-16884 (runc, by AppArmor): a volume that an image declares at /proc was mounted over the container's /proc,
// and the profile of AppArmor was written to a file of the image in place of the kernel's.
//
// Seen to fail with the refusal of mounts on and in /proc taken out of mountOperations in server/setup.go
// and of check_target in stage/setup.c, and with proc no longer left out of OwnVolumes in pod/storage/volumes.go.
func TestCVE_2019_16884_AVolumeCoversProc(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		dir := openDir(t, "self/attr", "sys/kernel")
		for _, declared := range []string{"/proc",
			"/proc/", "/./proc", "/x/../proc", "/proc/self", "/proc/self/attr", "/proc/sys", "/l/self", "/l",
			"/sys", "/dev", "/dev/pts"} {
			ref := hostile(t, n, rt.Layer(rt.Dir("proc/self/attr", 0o755), rt.File("proc/self/attr/exec", 0o666, ""),
				rt.Symlink("l", "/proc")),
				rt.Volumes(declared))
			t.Run("volume "+declared, func(t *testing.T) {
				startOrRefuse(t, s.pod(t, n), func(c *nodetest.Container) { confined(t, c) }, withImage(ref))
			})
			t.Run("mount "+declared, func(t *testing.T) {
				startOrRefuse(t, s.pod(t, n), func(c *nodetest.Container) {
					if strings.HasPrefix(declared, "/sys") || strings.HasPrefix(declared, "/dev") {
						return // a request may mount there: what is masked is still checked in the next test
					}
					confined(t, c, dir)
				}, withImage(hostile(t, n, rt.Layer(rt.Symlink("l", "/proc")))), volume(dir, declared))
			})
		}
	})
}

// CVE-2023-28642 (runc): with /proc of the image a link to another directory, and a mount of the container's on that,
// the profile of AppArmor was not applied. On a kernel without AppArmor the test shows that no such container begins.
//
// Seen to fail as TestCVE_2019_19921 was; its part with a profile, on a kernel with AppArmor, with the path
// of the profile's file resolved inside the container.
func TestCVE_2023_28642_ProcIsALinkAndTheProfileIsLost(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		dir := openDir(t, "self/attr/apparmor", "thread-self/attr/apparmor", "1/attr/apparmor")
		for _, at := range []string{"self", "thread-self", "1"} {
			writeFile(t, filepath.Join(dir, at, "attr/exec"), nil, 0o666)
			writeFile(t, filepath.Join(dir, at, "attr/apparmor/exec"), nil, 0o666)
		}
		for claim, edits := range map[string][]nodetest.ContainerEdit{
			"the link":     {withImage(hostile(t, n, rt.Layer(rt.Symlink("proc", "/sys/fs"))))},
			"and a volume": {withImage(hostile(t, n, rt.Layer(rt.Symlink("proc", "/fake")))), volume(dir, "/fake")},
			"and a volume on both": {withImage(hostile(t, n, rt.Layer(rt.Symlink("proc", "/fake")))), volume(dir, "/fake"),
				volume(dir, "/proc")},
		} {
			t.Run(claim, func(t *testing.T) {
				startOrRefuse(t, s.pod(t, n), func(c *nodetest.Container) {
					confined(t, c, dir)
					profileHolds(t, c)
				}, append(edits, underProfile)...)
			})
		}
	})
}

// CVE-2023-25809 (runc): a container in a user namespace that shares the host's network has the host's /sys, since it
// can mount none of its own. The bind was read-only, and the host's cgroups that are mounted below it were not.
//
// Seen to fail without the recursive options of the mount, in systemMounts of ocispec/mounts.go.
func TestCVE_2023_25809_TheHostsCgroupsAreWritable(t *testing.T) {
	n := nodetest.Shared(t)
	c := nodetest.RunPod(t, n, inUserNamespace, func(c *cri.PodSandboxConfig) {
		namespaces(c).Network = cri.NamespaceMode_NODE
	}).Run(capabilities("SYS_ADMIN"))
	below := 0
	for line := range strings.Lines(c.Sh("cat /proc/self/mountinfo")) {
		f := strings.Fields(line)
		if len(f) < 10 || !strings.HasPrefix(f[4], "/sys") || strings.HasSuffix(f[len(f)-1], fmt.Sprintf("uid=%d,gid=%[1]d",
			mappedRoot)) { // the directory of the container's own cgroups (version 1)
			continue
		}
		if below++; !strings.HasPrefix(f[5], "ro,nosuid,nodev,noexec") {
			t.Errorf("%s is %s", f[4], f[5])
		}
	}
	if below < 2 {
		t.Errorf("%d mounts at /sys", below)
	}
	// Without the mounts that cover them.
	if got := c.Sh("umount /sys/fs/cgroup/* /sys/fs/cgroup 2>/dev/null; for d in /sys/fs/cgroup /sys/fs/cgroup/*; do " +
		"mount -o remount,bind,rw $d 2>/dev/null && echo $d; done; true"); got != "" {
		t.Errorf("it has made these writable: %s", got)
	}
}

// CVE-2025-31133 (runc): a masked file is covered by the container's /dev/null. Another container exchanged that,
// in a volume on /dev, with a link, and the file that the link led to was mounted, writable, in place of the mask.
// CVE-2026-88265 (crun): the same link was opened for the container's standard streams, so that they were a file
// of the host's that the container may not write to.
//
// Seen to fail with the check of the device's number taken out of open_null in stage/setup.c.
func TestCVE_2025_31133_AMaskIsALink(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		b := newBait(t)
		masks := nodetest.Security(func(c *cri.LinuxContainerSecurityContext) {
			c.MaskedPaths, c.ReadonlyPaths = defaultMasked, defaultReadonly
		})
		readonly := nodetest.Mounts(&cri.Mount{HostPath: b.path, ContainerPath: "/bait", Readonly: true})
		look := func(t *testing.T, dir string) func(c *nodetest.Container, pid int) {
			return func(c *nodetest.Container, pid int) {
				onlyOwnMounts(t, c, pid, []string{dir, b.path})
				procIsKept(t, pid, true)
				for fd := range 3 {
					stream := fmt.Sprintf("/proc/%d/fd/%d", pid, fd)
					var st unix.Stat_t
					if err := unix.Stat(stream, &st); err != nil {
						t.Errorf("stream %d: %v", fd, err)
					}
					if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFIFO && (kind != unix.S_IFCHR || st.Rdev != unix.Mkdev(1, 3)) {
						to, _ := os.Readlink(stream)
						t.Errorf("stream %d is %s", fd, to)
					}
				}
			}
		}
		for claim, link := range map[string]string{
			"a sysctl": "/proc/sys/kernel/core_pattern", "a file of the host": "/bait/secret", "the masked file": "/proc/kcore",
			"nothing": "/none",
		} {
			t.Run(claim, func(t *testing.T) {
				dir := openDir(t)
				if err := os.Symlink(link, filepath.Join(dir, "null")); err != nil {
					t.Fatal(err)
				}
				startOrRefuse(t, s.pod(t, n), func(c *nodetest.Container) { look(t, dir)(c, initProcess(t, c)) },
					volume(dir, "/dev"), masks, readonly)
				b.check(t)
			})
			t.Run(claim+", exchanged", func(t *testing.T) {
				dir := openDir(t)
				null := filepath.Join(dir, "null")
				if err := unix.Mknod(null, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(link, filepath.Join(dir, "l")); err != nil {
					t.Fatal(err)
				}
				r := &race{a: "null", b: "l", dir: dir, image: node.Busybox,
					victim: []nodetest.ContainerEdit{volume(dir, "/dev"), masks, readonly},
					check:  look(t, dir), after: func() { b.check(t) }}
				r.run(t, n, s)
			})
		}
	})
}

// CVE-2025-52565 (runc): the terminal of a container is mounted on its /dev/console. With links in a volume on /dev
// or /dev/pts it was mounted elsewhere, or something else was mounted as the terminal, before any path was masked.
//
// Seen to fail with the checks of the terminal's device and file system taken out of stage_make_terminal
// in stage/stage.c, and with RESOLVE_NO_SYMLINKS taken out of stage_mount_console in stage/setup.c.
func TestCVE_2025_52565_TheConsoleIsALink(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		b := newBait(t)
		terminal := func(c *cri.ContainerConfig) { c.Tty, c.Stdin = true, true }
		readonly := nodetest.Mounts(&cri.Mount{HostPath: b.path, ContainerPath: "/bait", Readonly: true})
		check := func(t *testing.T, dir string) func(c *nodetest.Container, pid int) {
			return func(c *nodetest.Container, pid int) {
				onlyOwnMounts(t, c, pid, []string{dir, b.path})
				mounts, err := mountsOf(pid)
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range mounts {
					if m.FSType == "devpts" && m.Root != "/" && m.Mountpoint != "/dev/console" {
						t.Errorf("the terminal is mounted at %s", m.Mountpoint)
					}
					if m.Mountpoint == "/dev/console" && m.FSType != "devpts" {
						t.Errorf("the console is %s of a %s", m.Root, m.FSType)
					}
				}
			}
		}
		for _, at := range []string{"/dev", "/dev/pts"} {
			for _, name := range []string{"console", "ptmx", "0", "pts"} {
				for _, link := range []string{"/proc/sys/kernel/core_pattern", "/bait/secret", "/bait/new", b.path + "/new"} {
					dir := openDir(t)
					if err := os.Symlink(link, filepath.Join(dir, name)); err != nil {
						t.Fatal(err)
					}
					startOrRefuse(t, s.pod(t, n), func(c *nodetest.Container) {
						check(t, dir)(c, initProcess(t, c))
					}, volume(dir, at), readonly, terminal)
					b.check(t)
				}
			}
		}
		t.Run("exchanged", func(t *testing.T) {
			dir := openDir(t, "d/pts")
			for name, link := range map[string]string{"l": "/proc/sys/kernel", "d/console": "/proc/sys/kernel/core_pattern"} {
				if err := os.Symlink(link, filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			r := &race{a: "d", b: "l", dir: dir, image: hostile(t, n, rt.Layer(rt.Symlink("dev", "/v/d"))),
				victim: []nodetest.ContainerEdit{volume(dir, "/v"), readonly, terminal}, check: check(t, dir),
				after: func() { b.check(t) }}
			r.run(t, n, s)
		})
	})
}

// CVE-2025-52881 (runc): what a runtime writes below /proc (labels, profiles, sysctls) was redirected by a mount there,
// which another container had brought about by exchanging links of a shared volume: to files that do nothing,
// or to /proc/sysrq-trigger.
//
// Seen to fail with the refusal of targets in /proc taken out of check_target in stage/setup.c.
func TestCVE_2025_52881_AMountGoesIntoProc(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		before, err := os.ReadFile("/proc/sys/kernel/core_pattern")
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range []string{"/proc/self/attr", "/proc/sys/kernel", "/proc/1", "/proc"} {
			t.Run(link, func(t *testing.T) {
				mounted := openDir(t, "exec", "m0")
				ref := hostile(t, n, rt.Layer(rt.Symlink("l", link)))
				startOrRefuse(t, s.pod(t, n), func(c *nodetest.Container) { confined(t, c, mounted) },
					withImage(ref), several(mounted, "/l/m", 3), volume(mounted, "/l/attr"), volume(mounted, "/l/domainname"))
				dir := openDir(t, "d")
				if err := os.Symlink(link, filepath.Join(dir, "l")); err != nil {
					t.Fatal(err)
				}
				r := &race{a: "d", b: "l", dir: dir, image: node.Busybox,
					victim: []nodetest.ContainerEdit{volume(dir, "/v"), volume(mounted, "/v/d/attr"), volume(mounted, "/v/d/keys"),
						volume(mounted, "/v/d/irq"), volume(mounted, "/v/d/self")},
					check: func(c *nodetest.Container, _ int) { confined(t, c, dir, mounted) },
				}
				r.run(t, n, s)
			})
		}
		if after, err := os.ReadFile("/proc/sys/kernel/core_pattern"); err != nil || string(after) != string(before) {
			t.Errorf("core_pattern was %q and is %q, %v", before, after, err)
		}
	})
}

// CVE-2026-115521 (crun): a root that was asked to be read-only was made so by a path below /proc/self/fd,
// which the image could have as a link to another mount, so that the root stayed writable.
//
// Seen to fail with OP_ROOT_READONLY done by the path /proc/self/fd/N in operate of stage/setup.c and links
// of that name in the image's /proc, which a bind of a volume on /proc brings in.
func TestCVE_2026_115521_AReadOnlyRootIsNot(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		var entries []rt.Entry
		for fd := range 40 {
			entries = append(entries, rt.Symlink(fmt.Sprintf("proc/self/fd/%d", fd), "/tmp"),
				rt.Symlink(fmt.Sprintf("proc/thread-self/fd/%d", fd), "/tmp"))
		}
		dir := openDir(t)
		startOrRefuse(t, s.pod(t, n), func(c *nodetest.Container) {
			confined(t, c, dir)
			if r, err := c.Exec(60, "sh", "-c", "echo x >/x; echo x >/etc/passwd; echo x >/ro/x; ls /x /ro/x"); err != nil ||
				r.ExitCode == 0 {
				t.Errorf("it wrote: %q, %v", r.GetStdout(), err)
			}
		}, withImage(hostile(t, n, rt.Layer(entries...))),
			nodetest.Mounts(&cri.Mount{HostPath: dir, ContainerPath: "/ro", Readonly: true}),
			nodetest.Security(func(c *cri.LinuxContainerSecurityContext) { c.ReadonlyRootfs = true }))
	})
}

// CVE-2022-23648 (containerd): the content of a volume that an image declares was copied from a path that the image
// could lead out of itself, so that files of the host came into the container.
//
// Seen to fail with filepath.Join in place of securejoin in content of pod/storage/volumes.go.
func TestCVE_2022_23648_AVolumeOfTheImageHoldsTheHost(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		b := newBait(t)
		for claim, options := range map[string][]rt.ImageOption{
			"a path that climbs":   {rt.Volumes(up + b.path)},
			"an absolute one":      {rt.Volumes("/" + up + b.path)},
			"a link":               {rt.Layer(rt.Symlink("l", b.path)), rt.Volumes("/l")},
			"a link that climbs":   {rt.Layer(rt.Symlink("l", up+b.path)), rt.Volumes("/l")},
			"a link in the middle": {rt.Layer(rt.Symlink("l", path.Dir(b.path))), rt.Volumes("/l/" + path.Base(b.path))},
			"a magic link":         {rt.Layer(rt.Symlink("l", "/proc/self/root"+b.path)), rt.Volumes("/l")},
			"links in its content": {rt.Layer(rt.Symlink("data/l", b.path), rt.Symlink("data/f", b.path+"/secret")),
				rt.Volumes("/data")},
			"the directory of the host": {rt.Volumes(b.path)},
		} {
			t.Run(claim, func(t *testing.T) {
				startOrRefuse(t, s.pod(t, n), func(c *nodetest.Container) {
					confined(t, c)
					b.unread(t, "the container",
						c.Sh(fmt.Sprintf("cat /l/secret /data/f /data/l/secret %[1]s/secret /l/%[1]s/secret 2>/dev/null; :", b.path)))
					copied, err := filepath.Glob(filepath.Join(n.Root, "containers", c.ID, "volumes", "*", "secret"))
					if err != nil || len(copied) > 0 {
						t.Errorf("copied from the host: %v, %v", copied, err)
					}
				}, withImage(hostile(t, n, options...)))
				b.check(t)
			})
		}
	})
}

// named mounts the volume of a name, by the interface of the CRI that has these.
func named(t *testing.T, p *nodetest.Pod, name, at string, readonly bool,
	edits ...nodetest.ContainerEdit) *nodetest.Container {
	t.Helper()
	config := p.ContainerConfig(edits...)
	nodetest.Pull(t, p.Node, config.Image.Image)
	extension, err := proto.Marshal(&pouch.Mount{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	mount := &cri.Mount{ContainerPath: at, Readonly: readonly}
	mount.ProtoReflect().SetUnknown(extension)
	config.Mounts = append(config.Mounts, mount)
	v1alpha2 := nodetest.DialV1alpha2(p.Node)
	made, err := v1alpha2.CreateContainer(nodetest.Context(t),
		&cri.CreateContainerRequest{PodSandboxId: p.ID, SandboxConfig: p.Config, Config: config})
	if err != nil {
		t.Fatal(err)
	}
	c := &nodetest.Container{Pod: p, ID: made.ContainerId, Config: config}
	c.Start()
	return c
}

// CVE-2020-1726 (podman): a volume that was there already was filled from the image of each new container,
// over the files that it had, also where the container had it read-only.
//
// Seen to fail with the volume filled at each use in Use of volume/store.go.
func TestCVE_2020_1726_AnImageOverwritesAVolume(t *testing.T) {
	n := nodetest.Shared(t)
	b := newBait(t)
	evil := hostile(t, n, rt.Layer(rt.Dir("data", 0o777), rt.File("data/file", 0o644, "evil"),
		rt.File("data/l/secret", 0o644, "evil"), rt.File("data/new", 0o644, "evil")))
	for _, readonly := range []bool{false, true} {
		name := fmt.Sprintf("attacked%d", serial.Add(1))
		p := nodetest.RunPod(t, n)
		first := named(t, p, name, "/data", false)
		first.Sh("echo mine >/data/file; ln -s " + b.path + " /data/l")
		second := named(t, p, name, "/data", readonly, withImage(evil))
		if got := second.Sh("cat /data/file; ls /data"); got != "mine\nfile\nl" {
			t.Errorf("read-only %v: the volume holds %q", readonly, got)
		}
		b.check(t)
		for _, c := range []*nodetest.Container{first, second} {
			c.Remove()
		}
		_, err := nodetest.DialV1alpha2(n).Volumes.RemoveVolume(nodetest.Context(t),
			&pouch.RemoveVolumeRequest{VolumeName: name})
		if err != nil {
			t.Error(err)
		}
	}
}

// CVE-2017-1002101 and CVE-2021-25741 (Kubernetes): the sub path of a volume was a link, or was exchanged with one,
// and a directory of the host was mounted. A runtime resolves the sub path where an image is mounted as a volume.
//
// Seen to fail with filepath.Join in place of securejoin in imageSource of ocispec/mounts.go.
func TestCVE_2017_1002101_ASubPathLeadsToTheHost(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		b := newBait(t)
		ref := publish(t, n, rt.Layer(rt.Dir("plain", 0o755), rt.Symlink("l", b.path), rt.Symlink("c", up+b.path),
			rt.Symlink("m", "/proc/self/root"+b.path),
			rt.Symlink("plain/d", path.Dir(b.path)), rt.Symlink("root", "/")))
		nodetest.Pull(t, n, ref)
		for _, sub := range []string{"l", "c", "m", "l/secret", "c/secret", "plain/d/" + path.Base(b.path),
			"root", "root" + b.path,
			"..", "plain/../..", up[:len(up)-1] + b.path, b.path} {
			startOrRefuse(t, s.pod(t, n), func(c *nodetest.Container) {
				confined(t, c)
				b.unread(t, "the sub path "+sub, c.Sh("cat /sub /sub/secret 2>/dev/null; :"))
				if got := c.Sh("ls -d /sub/proc /sub/1 2>/dev/null; :"); got != "" {
					t.Errorf("the sub path %s is the host's: %s", sub, got)
				}
			}, nodetest.Mounts(&cri.Mount{ContainerPath: "/sub", Image: &cri.ImageSpec{Image: ref},
				ImageSubPath: sub, Readonly: true}))
			b.check(t)
		}
	})
}
