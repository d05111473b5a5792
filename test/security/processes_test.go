package security

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	rt "berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// Attacks on processes that come into a container, by those that are there.

// watched stops a container that watches processes, and returns what it has found.
func watched(t *testing.T, c *nodetest.Container) (found []string) {
	t.Helper()
	c.Stop(30)
	c.WaitExit()
	seen := regexp.MustCompile(`watched (\d+)`).FindStringSubmatch(c.Stdout())
	if seen == nil {
		t.Fatalf("the spy did not end well: %s", c.Log())
	}
	if count, err := strconv.Atoi(seen[1]); err != nil || count == 0 {
		t.Errorf("the spy saw %q processes", seen[1])
	}
	t.Logf("the spy saw %s processes", seen[1])
	for line := range strings.Lines(c.Stdout()) {
		if text, ok := strings.CutPrefix(line, "FOUND "); ok {
			found = append(found, strings.TrimSpace(text))
		}
	}
	return found
}

// markHost gives the host a mount and a socket that no container has, and returns the text of both that the kernel
// shows.
func markHost(t *testing.T) []string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mark-") // short: the path of a socket has at most 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(dir) })
	name, socket := "spied-"+rand.Text(), filepath.Join(dir, rand.Text())
	if err := unix.Mount(name, dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return []string{name, socket}
}

// CVE-2016-9962 (runc), CVE-2020-14298 and CVE-2020-14300 (the same, in Docker's packages): a process that entered
// a container for an exec still held the host's root and descriptors of host directories when it was visible
// in the container already, where another one read them by ptrace and through /proc.
//
// The spy holds CAP_SYS_PTRACE; a second one has no rights but stops what it sees, to look at it for longer.
//
// Seen to fail on the build whose stage joined the PID namespace and forked before it joined the others;
// and with dumpable left on, in stage/stage.c, for the spy without rights.
func TestCVE_2016_9962_AnExecIsSeenOnTheHost(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		b := newBait(t)
		ref := intruderImage(t, n)
		spy := command(append([]string{"/intruder", "spy", filepath.Join(b.path, "secret"), n.Dir}, markHost(t)...)...)
		stopping := func(c *cri.ContainerConfig) {
			c.Envs = append(c.Envs, &cri.KeyValue{Key: "SPY_STOP", Value: []byte("1")})
		}
		for claim, edits := range map[string][]nodetest.ContainerEdit{
			"with CAP_SYS_PTRACE": {capabilities("SYS_PTRACE")}, "that stops processes": {stopping, capabilities("SYS_PTRACE")},
			"without rights": {stopping, nodetest.Security(func(c *cri.LinuxContainerSecurityContext) {
				c.NoNewPrivs, c.Capabilities = true, &cri.Capability{DropCapabilities: []string{"ALL"}}
			}), as(1000, 1000)},
		} {
			t.Run(claim, func(t *testing.T) {
				c := s.pod(t, n).Run(append([]nodetest.ContainerEdit{withImage(ref), spy}, edits...)...)
				c.WaitLog("watching")
				again(t, func(int) {
					if _, err := c.Exec(60, "/bin/true"); err != nil {
						t.Fatal(err)
					}
				})
				if found := watched(t, c); len(found) > 0 {
					t.Errorf("in an exec it found:\n%s", strings.Join(found, "\n"))
				}
			})
			t.Run(claim+", starts in a shared PID namespace", func(t *testing.T) {
				p := s.pod(t, n, func(c *cri.PodSandboxConfig) { namespaces(c).Pid = cri.NamespaceMode_POD })
				c := p.Run(append([]nodetest.ContainerEdit{withImage(ref), spy}, edits...)...)
				c.WaitLog("watching")
				again(t, func(int) {
					other := p.Run(command("true"))
					other.WaitExit()
					other.Remove()
				})
				if found := watched(t, c); len(found) > 0 {
					t.Errorf("in a start it found:\n%s", strings.Join(found, "\n"))
				}
			})
		}
	})
}

// CVE-2019-5736 (runc): a container executed /proc/self/exe, which is the runtime's own binary while a process enters
// the container, held it open by /proc, and overwrote it on the host as soon as it did not run.
//
// Seen to fail with the sealed view of the keeper's binary replaced by the binary itself, in Seal of stage/stage.go.
func TestCVE_2019_5736_TheRuntimeIsOverwritten(t *testing.T) {
	binaries, err := node.Binaries(nodetest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	sums := func() (out map[string][32]byte) {
		out = map[string][32]byte{}
		for _, name := range []string{"berthd", "berth-keeper", "berth"} {
			data, err := os.ReadFile(filepath.Join(binaries, name))
			if err != nil {
				t.Fatal(err)
			}
			out[name] = sha256.Sum256(data)
		}
		return out
	}
	before := sums()
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		same := alive(t, n)
		self := hostile(t, n, withIntruder(t),
			rt.Layer(rt.Symlink("self", "/proc/self/exe"), rt.File("script", 0o755, "#!/proc/self/exe --version\n")))
		for _, pid := range []cri.NamespaceMode{cri.NamespaceMode_CONTAINER, cri.NamespaceMode_POD} {
			t.Run(pid.String(), func(t *testing.T) {
				p := s.pod(t, n, func(c *cri.PodSandboxConfig) { namespaces(c).Pid = pid })
				c := p.Run(withImage(self), command("/intruder", "overwrite"),
					capabilities("SYS_PTRACE", "DAC_OVERRIDE", "DAC_READ_SEARCH"))
				c.WaitLog("watching")
				again(t, func(int) {
					for _, program := range []string{"/bin/true", "/proc/self/exe", "/self", "/script"} {
						_, _ = c.Exec(30, program, "--version") // runs nothing, or itself
					}
					for _, program := range []string{"/proc/self/exe", "/script"} {
						other, err := p.TryCreate(withImage(self), command(program, "--version"))
						if err != nil {
							t.Fatal(err)
						}
						_ = other.TryStart()
						other.Remove()
					}
				})
				for _, found := range watched(t, c) {
					t.Log(found)
					if strings.HasPrefix(found, "wrote to") {
						t.Error(found)
					}
				}
			})
		}
		same()
		// The pod's init is the keeper's program too, and stays for as long as the pod.
		p := s.pod(t, n, func(c *cri.PodSandboxConfig) { namespaces(c).Pid = cri.NamespaceMode_POD })
		c := p.Run(withImage(self), command("sleep", "3600"), capabilities("SYS_PTRACE", "DAC_OVERRIDE", "DAC_READ_SEARCH"))
		if r, err := c.Exec(60, "sh", "-c",
			"echo x >/proc/1/exe; exec 3</proc/1/exe && echo x >/proc/self/fd/3; exit 1"); err != nil || r.ExitCode == 0 {
			t.Errorf("the pod's init was written to: %q, %v", r.GetStdout(), err)
		}
	})
	for name, sum := range sums() {
		if sum != before[name] {
			t.Errorf("%s has been overwritten", name)
		}
	}
}

// CVE-2022-31030 (containerd): all that a command of ExecSync wrote was held in memory until it ended.
//
// Seen to fail with the limit taken out of limited.Write in pod/exec.go, and its part with many commands without the
// bound of all together, in Buffer.Write of pod/stdio/stdio.go: they took 1066 MiB.
func TestCVE_2022_31030_AnExecWritesWithoutEnd(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		c := s.pod(t, n).Run()
		same := alive(t, n)
		files := openFiles(t, n)
		berthd, keeper := peak(t, n, func() {
			r, err := c.Exec(120, "sh", "-c", "head -c 300000000 /dev/zero; head -c 300000000 /dev/zero >&2")
			if err != nil {
				t.Fatalf("exec: %v", err)
			}
			if len(r.Stdout) > 16<<20 || len(r.Stderr) > 16<<20 {
				t.Errorf("the answer has %d and %d bytes", len(r.Stdout), len(r.Stderr))
			}
		})
		t.Logf("berthd took %d MiB, the keeper %d MiB", berthd>>20, keeper>>20)
		// The two streams, the answer and its bytes on the wire; each is kept to 16 MiB.
		if berthd > 250<<20 || keeper > 32<<20 {
			t.Errorf("berthd took %d MiB, the keeper %d MiB", berthd>>20, keeper>>20)
		}
		// And without end: the timeout ends it.
		begin := time.Now()
		berthd, _ = peak(t, n, func() { _, _ = c.Exec(1, "sh", "-c", "exec cat /dev/zero") })
		if took := time.Since(begin); took > node.Patience(24*time.Second) || berthd > 250<<20 {
			t.Errorf("a command without end took %v and %d MiB", took, berthd>>20)
		}
		// And many of them, as the probes of one pod can be.
		berthd, _ = peak(t, n, func() {
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() {
					_, _ = c.Exec(60, "sh", "-c", "head -c 20000000 /dev/zero; head -c 20000000 /dev/zero >&2; sleep 3")
				})
			}
			all.Wait()
		})
		if t.Logf("berthd took %d MiB for 20 commands", berthd>>20); berthd > 400<<20 {
			t.Errorf("berthd took %d MiB for 20 commands", berthd>>20)
		}
		if r, err := c.Exec(60, "sh", "-c", "head -c 10000000 /dev/zero"); err != nil || len(r.Stdout) != 10000000 {
			t.Errorf("then a command has %d bytes of output: %v", len(r.GetStdout()), err)
		}
		same()
		settledFiles(t, n, files)
	})
}

// CVE-2022-1708 (CRI-O): what a command of ExecSync wrote went to a file on the host's disk, without a limit,
// and was read from there into memory when it ended.
//
// While the command still runs, neither the node's directories nor files without a name that the daemons hold
// have what it has written, but for the 16 MiB of a stream that are kept. Seen to fail with the output of an exec
// written to a file below the root directory, in pod/exec.go.
func TestCVE_2022_1708_AnExecWritesToTheHostsDisk(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		c := s.pod(t, n).Run()
		written := func() int64 { return bytesBelow(n.Root, n.State, n.LogDir) + bytesHeld(t, n) }
		before := written()
		done := make(chan error, 1)
		go func() {
			_, err := c.Exec(300, "sh", "-c", "head -c 100000000 /dev/zero; head -c 100000000 /dev/zero >&2; echo >/written; "+
				"while ! test -e /seen; do sleep 0.05; done")
			done <- err
		}()
		root := fmt.Sprintf("/proc/%d/root/", initProcess(t, c))
		nodetest.Eventually(t, 2*time.Minute, "the command has written all", func() error {
			_, err := os.Stat(root + "written")
			return err
		})
		if grown := written() - before; grown > 40<<20 {
			t.Errorf("there are %d MiB more on the host", grown>>20)
		}
		c.Sh("echo >/seen")
		if err := <-done; err != nil {
			t.Log(err)
		}
	})
}

// bytesBelow is what regular files below directories take.
func bytesBelow(dirs ...string) (total int64) {
	for _, dir := range dirs {
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			var st unix.Stat_t
			if err == nil && d.Type().IsRegular() && unix.Lstat(path, &st) == nil {
				total += st.Blocks * 512
			}
			return nil // what is gone takes nothing
		})
	}
	return total
}

// bytesHeld is what regular files take that have no name and are open in berthd or the keeper.
func bytesHeld(t *testing.T, n *node.Node) (total int64) {
	t.Helper()
	keeper, _ := n.KeeperPID()
	for _, pid := range []int{n.PID(), keeper} {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			var st unix.Stat_t
			if unix.Stat(filepath.Join(dir, e.Name()), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink == 0 {
				total += st.Blocks * 512
			}
		}
	}
	return total
}

// CVE-2026-53495 (containerd): a command of ExecSync left a process behind that kept its output open. The copying
// of that output never ended, and repeated probes filled the daemon's memory.
//
// Seen to fail with drain taken out of pod/exec.go.
func TestCVE_2026_53495_AnExecLeavesItsOutputOpen(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		c := s.pod(t, n).Run()
		before, files := metric(t, "go_goroutines"), openFiles(t, n)
		var wait sync.WaitGroup
		for range 20 {
			wait.Go(func() {
				r, err := c.Exec(30, "sh", "-c", "sleep 3600 & echo done")
				if err != nil || string(r.Stdout) != "done\n" {
					t.Errorf("exec: %q, %v", r.GetStdout(), err)
				}
			})
		}
		wait.Wait()
		settledMetric(t, "go_goroutines", before+10)
		settledFiles(t, n, files)
	})
}

// openFiles are the descriptors that berthd and the keeper have.
func openFiles(t *testing.T, n *node.Node) int {
	t.Helper()
	keeper, _ := n.KeeperPID()
	count := 0
	for _, pid := range []int{n.PID(), keeper} {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			t.Fatal(err)
		}
		count += len(entries)
	}
	return count
}

// settledFiles waits until berthd and the keeper have no more descriptors than they had, but for some of connections.
func settledFiles(t *testing.T, n *node.Node, before int) {
	t.Helper()
	nodetest.Eventually(t, 30*time.Second, "the descriptors are closed", func() error {
		if now := openFiles(t, n); now > before+10 {
			return fmt.Errorf("there are %d, and there were %d", now, before)
		}
		return nil
	})
}

// sizes are many sizes of a terminal.
type sizes struct{ left int }

func (s *sizes) Next() *remotecommand.TerminalSize {
	if s.left == 0 {
		return nil
	}
	s.left--
	return &remotecommand.TerminalSize{Width: uint16(s.left), Height: 24}
}

// CVE-2022-23471 (containerd): sizes of a terminal for a command that could not be started were sent to nobody,
// by a goroutine that waited for ever.
//
// Seen to fail with a send of each size to a channel that is read only once the command runs, in stream/executor.go.
func TestCVE_2022_23471_SizesOfATerminalThatIsNot(t *testing.T) {
	n := nodetest.Shared(t)
	c := nodetest.RunPod(t, n).Run()
	before, files := metric(t, "go_goroutines"), openFiles(t, n)
	for _, transport := range []nodetest.Transport{nodetest.SPDY, nodetest.WebSocket} {
		for _, cmd := range []string{"/no/such/program", "/etc/passwd", "true"} {
			for range 10 {
				r, err := n.Runtime.Exec(nodetest.Context(t),
					&cri.ExecRequest{ContainerId: c.ID, Cmd: []string{cmd}, Tty: true, Stdin: true, Stdout: true})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(context.Background(), node.Patience(20*time.Second))
				in, end := io.Pipe()
				_, _ = nodetest.Stream(ctx, transport, r.Url, remotecommand.StreamOptions{
					Stdin: in, Stdout: io.Discard, Tty: true, TerminalSizeQueue: &sizes{left: 50},
				})
				end.Close()
				cancel()
			}
		}
	}
	settledMetric(t, "go_goroutines", before+10)
	settledFiles(t, n, files)
}

// CVE-2025-64329 (containerd): each attach whose client went away left goroutines behind.
//
// Seen to fail with the end of an attach at its context's taken out of pod/attach.go.
func TestCVE_2025_64329_AnAttachWhoseClientGoes(t *testing.T) {
	n := nodetest.Shared(t)
	c := nodetest.RunPod(t, n).Run(nodetest.Sh("while :; do echo output; sleep 0.01; done"),
		func(c *cri.ContainerConfig) { c.Stdin = true })
	before, files := metric(t, "go_goroutines"), openFiles(t, n)
	for _, transport := range []nodetest.Transport{nodetest.SPDY, nodetest.WebSocket} {
		for range 15 {
			r, err := n.Runtime.Attach(nodetest.Context(t),
				&cri.AttachRequest{ContainerId: c.ID, Stdin: true, Stdout: true, Stderr: true})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			in, end := io.Pipe()
			first := &firstBytes{got: cancel}
			_, _ = nodetest.Stream(ctx, transport, r.Url,
				remotecommand.StreamOptions{Stdin: in, Stdout: first, Stderr: io.Discard})
			end.Close()
			cancel()
		}
	}
	settledMetric(t, "go_goroutines", before+10)
	settledFiles(t, n, files)
}

// firstBytes calls got when something is written.
type firstBytes struct{ got func() }

func (f *firstBytes) Write(p []byte) (int, error) {
	f.got()
	return len(p), nil
}

// CVE-2024-21626 (runc): a descriptor of a host directory was open in the process that became the container,
// whose working directory, of the image or of an exec, was /proc/self/fd/7: on the host.
//
// Seen to fail with check_cwd taken out of stage/stage.c and a descriptor of the host's root left open in join
// and begin.
func TestCVE_2024_21626_TheWorkingDirectoryIsADescriptor(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		b := newBait(t)
		find := fmt.Sprintf("cat ../../../../../../../../../../../../..%[1]s/secret ./%[1]s/secret 2>/dev/null; :", b.path)
		p := s.pod(t, n)
		var dirs []string
		for fd := range 24 {
			dirs = append(dirs, fmt.Sprintf("/proc/self/fd/%d", fd))
		}
		dirs = append(dirs, "/proc/self/fd/7/../../../..", "/proc/1/cwd", "/proc/self/cwd", "/proc/1/root"+b.path, "/l/../..")
		ref := hostile(t, n, rt.Layer(rt.Symlink("l", "/proc/self/fd/7")))
		for _, dir := range dirs {
			c, err := p.TryCreate(withImage(ref), nodetest.Sh(find+"; pwd -P"),
				func(c *cri.ContainerConfig) { c.WorkingDir = dir })
			if err == nil {
				err = c.TryStart()
			}
			if err == nil {
				c.WaitExit()
				b.unread(t, "the working directory "+dir, c.Log())
			}
			if c != nil {
				c.Remove()
			}
		}
		b.check(t)

		// The container exchanges its working directory for a link before an exec.
		c := p.Run(withImage(ref), func(c *cri.ContainerConfig) { c.WorkingDir = "/work" })
		for fd := range 24 {
			c2 := fmt.Sprintf("cd /; rm -rf /work; ln -s /proc/self/fd/%d /work", fd)
			if fd > 0 {
				// The last exec's link may not let another one in.
				restore(t, c)
			}
			c.Sh(c2)
			r, err := c.Exec(60, "sh", "-c", find)
			if err == nil {
				b.unread(t, fmt.Sprintf("an exec in descriptor %d", fd), string(r.Stdout))
			}
		}
		restore(t, c)

		// What an exec is given: its standard streams, and nothing else.
		if got := c.Sh("ls /proc/self/fd | tr '\\n' ' '"); got != "0 1 2 3 " { // 3 is that of ls itself
			t.Errorf("an exec has the descriptors %s", got)
		}
	})
}

// restore makes /work a directory again, from the host: no exec can enter the container while it is a link to nowhere.
func restore(t *testing.T, c *nodetest.Container) {
	t.Helper()
	work := fmt.Sprintf("/proc/%d/root/work", initProcess(t, c))
	if err := os.Remove(work); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
}

// CVE-2021-21334 (containerd), CVE-2020-14370 (podman): containers that were made at the same time, of one image,
// saw variables of each other, since their environments shared memory.
//
// The images have lists of several lengths, so that the memory of some has room for one more variable,
// and the containers are in pods of their own, since those of one pod are made one after the other. Seen to fail
// with the image's own list of variables appended to, in env of ocispec/process.go.
func TestCVE_2021_21334_AVariableOfAnotherContainer(t *testing.T) {
	n := nodetest.Shared(t)
	var images []string
	for length := range 6 {
		image := []string{"PATH=/bin:/usr/bin", "HOME=/", "HOSTNAME=x"} // what every container has
		for i := range length {
			image = append(image, fmt.Sprintf("IMAGE%d=x", i))
		}
		images = append(images, hostile(t, n, rt.Env(image...)))
		nodetest.Pull(t, n, images[length])
	}
	var pods []*nodetest.Pod
	for range 8 {
		pods = append(pods, nodetest.RunPod(t, n))
	}
	made := 0
	again(t, func(round int) {
		containers := make([]*nodetest.Container, len(pods))
		var wait sync.WaitGroup
		for i, p := range pods {
			wait.Go(func() {
				c, err := p.TryCreate(withImage(images[round%len(images)]), func(c *cri.ContainerConfig) {
					c.Envs = []*cri.KeyValue{{Key: "SECRET", Value: fmt.Appendf(nil, "of-%d", i)}}
				})
				if err != nil {
					t.Error(err)
					return
				}
				containers[i] = c
			})
		}
		wait.Wait()
		for i, c := range containers {
			if c == nil {
				continue
			}
			made++
			var secrets []string
			for _, entry := range specOf(t, c).Process.Env {
				if strings.HasPrefix(entry, "SECRET=") {
					secrets = append(secrets, entry)
				}
			}
			if want := fmt.Sprintf("SECRET=of-%d", i); len(secrets) != 1 || secrets[0] != want {
				t.Errorf("container %d has %q, not %q", i, secrets, want)
			}
			c.Remove()
		}
	})
	t.Logf("%d containers", made)
}

// CVE-2026-57231 (podman), CVE-2021-3602 (buildah): an entry of the image's environment that is no variable stood
// for variables of the host's process, all of them with "*".
//
// Seen to fail with entries without "=" filled from the daemon's environment, in env of ocispec/process.go.
func TestCVE_2026_57231_VariablesOfTheHost(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		var host []string
		for _, pid := range []int{n.PID(), must2(n.KeeperPID())} {
			environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
			if err != nil {
				t.Fatal(err)
			}
			for entry := range bytes.SplitSeq(environ, []byte{0}) {
				if key, _, ok := strings.Cut(string(entry), "="); ok {
					host = append(host, key)
				}
			}
		}
		if len(host) == 0 {
			t.Fatal("berthd has no environment to leak")
		}
		ref := hostile(t, n, rt.Config(func(c *v1.Config) {
			c.Env = append([]string{"*", "=", "=x", "P*", "?", "PATH*", "*=", "A\x00B=c"}, host...)
		}))
		env := s.pod(t, n).Output("env", withImage(ref))
		allowed := map[string]bool{"PATH": true, "HOSTNAME": true, "HOME": true, "PWD": true, "SHLVL": true,
			"*": true, "OLDPWD": true}
		for line := range strings.Lines(env) {
			key, _, _ := strings.Cut(line, "=")
			if !allowed[key] && !strings.HasPrefix(key, "IMAGE") {
				t.Errorf("the container has %s", strings.TrimSpace(line))
			}
		}
		if strings.Contains(env, "PATH="+os.Getenv("PATH")+"\n") &&
			os.Getenv("PATH") != "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" {
			t.Error("the container has the host's PATH")
		}
	})
}

func must2(pid int, ok bool) int {
	if !ok {
		panic("no keeper answers")
	}
	return pid
}
