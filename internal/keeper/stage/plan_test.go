package stage

import (
	"bytes"
	"encoding/binary"
	"io"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/filter"
)

// plans runs plans in a program that is built with sanitizers: testdata/plan.c.
type plans struct {
	sync.Mutex
	in       io.WriteCloser
	out      io.Reader
	findings *bytes.Buffer
}

func newPlans(t testing.TB) *plans {
	t.Helper()
	program := filepath.Join(t.TempDir(), "plan")
	out, err := exec.Command("gcc",
		"-Wall", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-o", program,
		"testdata/plan.c", "stage.c", "setup.c", "proc.c").CombinedOutput()
	if err != nil {
		t.Fatalf("build the stage with sanitizers: %v\n%s", err, out)
	}
	p := &plans{findings: &bytes.Buffer{}}
	cmd := exec.Command(program)
	cmd.Stderr = p.findings
	p.in, err = cmd.StdinPipe()
	if err == nil {
		p.out, err = cmd.StdoutPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.in.Close()
		_ = cmd.Wait()
	})
	return p
}

func (p *plans) try(t testing.TB, plan []byte) {
	t.Helper()
	p.Lock()
	defer p.Unlock()
	_, err := p.in.Write(append(binary.NativeEndian.AppendUint32(nil, uint32(len(plan))), plan...))
	var found [1]byte
	if err == nil {
		_, err = io.ReadFull(p.out, found[:])
	}
	if err != nil {
		t.Fatal(err)
	}
	if found[0] != 0 {
		t.Errorf("a sanitizer has found:\n%s", p.findings)
		p.findings.Reset()
	}
}

// content is the plan that a process is given.
func content(t testing.TB, p *Process, more func(*encoder) error, forks bool) []byte {
	t.Helper()
	f, err := p.file(more, forks)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// FuzzPlan has the stage go through plans that no keeper makes. The keeper is trusted; a fault of its own
// must not become one that a container can use.
//
// Seen to fail with check_plan, and with the bound in stage_text, taken out.
func FuzzPlan(f *testing.F) {
	p := newPlans(f)
	score, mask := 500, uint32(0o27)
	proc := &Process{
		Args: []string{"sh", "-c", "true"}, Env: []string{"PATH=/bin:relative:", "A=b"}, Cwd: "/tmp", UID: 1000, GID: 1000,
		Groups:       []uint32{1, 2},
		Capabilities: &Capabilities{Bounding: 0x21, Ambient: 1}, AppArmor: "profile",
		Filter: &filter.Filter{Program: make([]byte, 80)}, Terminal: true,
		Rows: 20, Columns: 80,
	}
	setup := &Setup{
		Root: "/root", Make: unix.CLONE_NEWNS | unix.CLONE_NEWPID, User: "/user", Umask: 0o22, OOMScore: &score,
		Keyring: "ring", KeyringRight: 8, KeyringUID: 3000000000,
		Cgroups: []string{"a", "b"}, Wait: true, Limits: limits, ReopenNull: true,
		Join: []Namespace{{unix.CLONE_NEWNET, "/net"}, {unix.CLONE_NEWPID, "/pid"}},
	}
	for kind := Mount; kind <= Label; kind++ {
		setup.Operations = append(setup.Operations, Operation{
			Kind: kind, Source: "/a/source", Target: "/some/target/deep", Type: "tmpfs", Data: "mode=755,x",
			CopyMode: true, Recursive: true,
			MapIDs: kind == Bind, Propagation: unix.MS_SLAVE, Set: 1, SetAll: 1,
		})
	}
	setup.Operations = append(setup.Operations,
		Operation{Kind: Mount, Type: "proc", Source: "proc", Target: "/proc", Data: "hidepid=2,gid=5"})
	target := &Target{Namespaces: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUSER, Cgroups: []string{"a"},
		Umask: &mask, OOMScore: &score,
		Keyring: "ring", KeyringUID: 3000000000, Limits: limits}
	for _, plan := range [][]byte{
		content(f, proc, setup.encode, true), content(f, proc, setup.encode, false), content(f, proc, target.encode, true),
		content(f, proc, nil, false),
	} {
		f.Add(plan)
	}
	f.Fuzz(func(t *testing.T, plan []byte) {
		if len(plan) < planSize || len(plan) > 1<<16 {
			return
		}
		// What a plan begins with is checked first: most of the others would come to nothing.
		head := []uint32{0x62657274, uint32(len(plan))}
		copy(plan, unsafe.Slice((*byte)(unsafe.Pointer(&head[0])), 8))
		if plan[8]&1 == 0 {
			plan[len(plan)-1] = 0
		}
		p.try(t, plan)
	})
}
