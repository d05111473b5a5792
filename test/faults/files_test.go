package faults

import (
	"errors"
	"io/fs"
	"maps"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// damages are what a disk, or a power failure, does to a file.
var damages = []string{"flipped", "cut in half", "emptied", "deleted"}

// errInUse is a file that cannot be spoilt, since it is mounted, or is a program that runs.
var errInUse = errors.New("it is in use")

func damage(kind, path string, part float64) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	switch kind {
	case "flipped":
		var data []byte
		if data, err = os.ReadFile(path); err == nil && len(data) > 0 {
			data[min(int(part*float64(len(data))), len(data)-1)] ^= 0x20
			err = os.WriteFile(path, data, 0o600)
		}
	case "cut in half":
		err = os.Truncate(path, info.Size()/2)
	case "emptied":
		err = os.Truncate(path, 0)
	case "deleted":
		err = os.Remove(path)
	}
	if errors.Is(err, syscall.ETXTBSY) || errors.Is(err, syscall.EBUSY) {
		return errInUse
	}
	return err
}

// ownFiles are the files of berthd's and the keeper's own, below the node's directory: not what is in layers,
// containers, volumes and files of pods, which are the containers', and not namespaces.
func ownFiles(t *testing.T, n *node.Node) []string {
	t.Helper()
	var files []string
	for _, dir := range []string{n.Root, n.State} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			others := []string{"fs", "upper", "work", "rootfs", "data", "trash", "attach", "spoilt", "ns", "files"}
			if d.IsDir() && slices.Contains(others, d.Name()) {
				return filepath.SkipDir
			}
			rel, err := filepath.Rel(n.Dir, path)
			if err == nil && d.Type().IsRegular() && !strings.Contains(rel, ".spoilt-") {
				files = append(files, rel)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// spoilt is a file of the node, what happens to it while berthd is down, and whether the keeper is down as well.
type spoilt struct {
	file, kind string
	both       bool
}

func (o spoilt) String() string {
	who := "berthd is down"
	if o.both {
		who = "both are down"
	}
	return o.kind + " " + o.file + " while " + who
}

// spoils are all of them, as many of each part of the node as the other parts have, in turns.
func spoils(r *rand.Rand, files []string) []spoilt {
	parts := map[string][]spoilt{}
	for _, file := range files {
		part := strings.Join(strings.SplitN(file, "/", 3)[:2], "/")
		for _, kind := range damages {
			for _, both := range []bool{false, true} {
				parts[part] = append(parts[part], spoilt{file, kind, both})
			}
		}
	}
	var all []spoilt
	names := slices.Sorted(maps.Keys(parts))
	for _, name := range names {
		list := parts[name]
		r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	}
	r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for len(all) < 8*len(files) {
		for _, name := range names {
			if list := parts[name]; len(list) > 0 {
				all, parts[name] = append(all, list[0]), list[1:]
			}
		}
	}
	return all
}

// stopKeeper ends the keeper in order, as a service manager does. It leaves an escrow process with the containers'
// pipes.
func stopKeeper(t *testing.T, n *node.Node) {
	t.Helper()
	pid, ok := n.KeeperPID()
	if !ok {
		t.Fatal("no keeper answers")
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, 30*time.Second, "the keeper ends", func() error {
		if err := syscall.Kill(pid, 0); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
}

// bystanders are what runs, and what has ended, while files are spoilt.
type bystanders struct {
	pod     *nodetest.Pod
	address string
	writes  *witness            // confined by a seccomp profile
	quiet   *nodetest.Container // of an OCI runtime; nil: there is none on the machine
	ownLost bool                // that runtime's own state of it is spoilt, and it runs no exec in it any more
	ended   *nodetest.Container
}

func newBystanders(t *testing.T, n *node.Node) *bystanders {
	t.Helper()
	p := nodetest.RunPod(t, n)
	b := &bystanders{pod: p, address: p.Status().Network.Ip}
	b.writes = newWitness(t, p, nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
		s.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
	}))
	b.ended = p.Run(nodetest.Sh("exit 7"))
	b.ended.WaitExit()
	if n.Handlers["runc"] != "" {
		b.quiet = nodetest.RunPodHandler(t, n, "runc").Run()
	}
	return b
}

// check says that nothing of it has ended, and nothing of it is told otherwise than it is.
func (b *bystanders) check(t *testing.T) {
	t.Helper()
	b.writes.check(t)
	if got := b.writes.Sh("grep Seccomp: /proc/self/status"); strings.TrimSpace(strings.TrimPrefix(got,
		"Seccomp:")) != "2" {
		t.Errorf("an exec in a container with a seccomp profile has %q", got)
	}
	if s := b.pod.Status(); s.State != cri.PodSandboxState_SANDBOX_READY || s.Network.GetIp() != b.address {
		t.Errorf("the pod is %v at %q", s.State, s.Network.GetIp())
	}
	if got := b.writes.Sh("ip -4 addr show eth0 || ifconfig eth0"); !strings.Contains(got, b.address) {
		t.Errorf("it is told as %s, and its interface says %q", b.address, got)
	}
	if s := b.ended.Status(); s.State != cri.ContainerState_CONTAINER_EXITED || s.ExitCode != 7 {
		t.Errorf("the container that has ended is %v with %d", s.State, s.ExitCode)
	}
	if c := b.pod.Run(nodetest.Sh("exit 3")); c.WaitExit().ExitCode != 3 {
		t.Error("no container runs in the pod any more")
	} else {
		c.Remove()
	}
	if b.quiet == nil {
		return
	}
	if s := b.quiet.Status(); s.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the one of runc is %v: %s", s.State, s.Message)
	}
	if b.ownLost {
		return
	}
	if got := b.quiet.Sh("echo well"); got != "well" {
		t.Errorf("an exec in the one of runc says %q", got)
	}
}

// TestNoFileKeepsTheNodeDown: each file of berthd and of the keeper is flipped, cut in half, emptied and deleted, while
// berthd is down and while both are; a sample of 16, and all with BERTH_LONG. The node becomes ready, what runs runs on
// with its log, its network and its confinement, what is told is true, and calls answer. It was seen to fail where
// second files are not mended, so that the loss of both at different times ends a pod; where the bridge's records are
// not made anew; and where the keeper's records have one file.
func TestNoFileKeepsTheNodeDown(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	r := chance(t)
	b := newBystanders(t, n)
	all := spoils(r, ownFiles(t, n))
	if os.Getenv("BERTH_LONG") == "" {
		all = all[:min(len(all), 16)]
	}
	restart := func(t *testing.T) {
		t.Helper()
		if err := n.Restart(nodetest.Context(t)); err != nil {
			t.Fatal(err)
		}
		b.check(t)
	}
	for _, o := range all {
		t.Run(o.String(), func(t *testing.T) {
			if err := n.Kill(); err != nil {
				t.Fatal(err)
			}
			if o.both {
				stopKeeper(t, n)
			}
			err := damage(o.kind, filepath.Join(n.Dir, o.file), r.Float64())
			if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, errInUse) { // or it has gone meanwhile
				t.Fatal(err)
			}
			b.ownLost = b.ownLost || strings.HasPrefix(o.file, "state/keeper/state/.")
			restart(t)
			if !o.both && strings.HasPrefix(o.file, "state/keeper/") {
				// The keeper has not read it: the next one does, before anything else is spoilt.
				if err := n.Kill(); err != nil {
					t.Fatal(err)
				}
				stopKeeper(t, n)
				restart(t)
			}
		})
		if t.Failed() {
			break
		}
	}
	nothingLeft(t, n)
}
