package client_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	keeper "berth/internal/keeper/client"
	"berth/internal/keeper/pidfd"
)

// spoil does to a file what a disk, or a power failure, does.
var spoil = map[string]func(path string) error{
	"flipped": func(path string) error {
		data, err := os.ReadFile(path)
		if err == nil {
			data[len(data)/2] ^= 1
			err = os.WriteFile(path, data, 0o600)
		}
		return err
	},
	"cut":     func(path string) error { return os.Truncate(path, 30) },
	"emptied": func(path string) error { return os.Truncate(path, 0) },
	"deleted": os.Remove,
}

// One of the two files of a record is spoilt while nothing is in escrow: the container is found, with its process or
// its exit code, and the records are whole again. Seen to fail with records in one file, and, for a flipped byte,
// without their seal.
func TestASpoiltRecordCostsNothing(t *testing.T) {
	n := start(t)
	n.run(n.request("ends", "sh", "-c", "exit 7"))
	n.ended("ends")
	n.run(n.request("lives", "sleep", "1000"))
	before, err := n.client.Status(n.ctx(), "lives")
	if err != nil {
		t.Fatal(err)
	}
	for kind, damage := range spoil {
		for _, suffix := range []string{".json", ".json.spare"} {
			t.Run(kind+" "+suffix, func(t *testing.T) {
				pid := n.pid()
				n.client.Close()
				n.end(pid, unix.SIGKILL)
				for _, id := range []string{"ends", "lives"} {
					if err := damage(filepath.Join(n.dir, "rows", id+suffix)); err != nil {
						t.Fatal(err)
					}
				}
				n.client = n.connect()
				if st, err := n.client.Status(n.ctx(), "lives"); err != nil || st.State != keeper.StateRunning ||
					st.PID != before.PID {
					t.Errorf("one that lives: %+v, %v", st, err)
				}
				if st := n.ended("ends"); st.ExitCode != 7 || st.Lost {
					t.Errorf("one that has ended: %+v", st)
				}
				if _, exit := n.exec("lives", 0, "true"); exit.ExitCode != 0 {
					t.Errorf("exec: %+v", exit)
				}
			})
		}
	}
	n.delete("lives")
	n.delete("ends")
}

// Both files of a record are spoilt. Whoever holds it in escrow hands the container back; where nobody does, its
// processes are ended, and are not left running without anybody who knows them. Seen to fail without endLost.
func TestARecordThatIsLost(t *testing.T) {
	for _, escrow := range []bool{true, false} {
		name := "without escrow"
		if escrow {
			name = "with escrow"
		}
		t.Run(name, func(t *testing.T) {
			n := start(t)
			n.run(n.request("a", "sleep", "1000"))
			st, err := n.client.Status(n.ctx(), "a")
			if err != nil {
				t.Fatal(err)
			}
			began, err := pidfd.StartTime(st.PID)
			if err != nil {
				t.Fatal(err)
			}
			pid := n.pid()
			if !escrow {
				n.client.Close()
			}
			// The client starts another as soon as this one is gone: it is stopped, spoilt and killed.
			if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			for _, suffix := range []string{".json", ".json.spare"} {
				if err := os.Truncate(filepath.Join(n.dir, "rows", "a"+suffix), 30); err != nil {
					t.Fatal(err)
				}
			}
			n.end(pid, unix.SIGKILL)
			if escrow {
				n.until("it is handed back", func() bool {
					now, err := n.client.Status(n.ctx(), "a")
					return err == nil && now.State == keeper.StateRunning && now.PID == st.PID
				})
				n.delete("a")
				return
			}
			n.client = n.connect()
			if _, err := n.client.Status(n.ctx(), "a"); !errors.Is(err, errdefs.ErrNotFound) {
				t.Errorf("status of a container without a record: %v", err)
			}
			n.until("its process has ended", func() bool { return !pidfd.Alive(st.PID, began) })
			n.until("nothing is left", func() bool {
				left, _ := filepath.Glob(filepath.Join(n.dir, "*", "a*"))
				return len(left) == 0
			})
		})
	}
}

// The compiled seccomp profile of a container that runs is spoilt, or the profile itself, one after the other and
// together: an exec has the profile that it had before, or does not begin. Seen to fail without the checksum in the
// record, where an exec began with another filter.
func TestASpoiltFilterConfinesNoLess(t *testing.T) {
	n := start(t)
	n.setup = keeper.SetupStage // libcontainer compiles profiles itself
	req := n.request("a", "sleep", "1000")
	req.Spec.Linux.Seccomp = profile()
	n.run(req)
	file := func(pattern string) string {
		found, err := filepath.Glob(filepath.Join(n.dir, "filters", pattern))
		if err != nil || len(found) != 1 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		return found[0]
	}
	program, one, other := file("*.bpf"), file("*.json"), file("*.json.spare")
	whole, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	exec := func() (string, error) {
		out, exit := n.exec("a", 0, "grep", "Seccomp:", "/proc/self/status")
		if exit.ExitCode != 0 {
			return out, errors.New("it failed")
		}
		return out, nil
	}
	for kind, damage := range spoil {
		for _, path := range []string{program, one, other} {
			t.Run(kind+" "+filepath.Ext(path), func(t *testing.T) {
				pid := n.pid()
				n.client.Close()
				n.end(pid, unix.SIGKILL)
				if err := errors.Join(os.WriteFile(program, whole, 0o600), damage(path)); err != nil {
					t.Fatal(err)
				}
				n.client = n.connect()
				if out, err := exec(); err != nil || out != "Seccomp:\t2\n" {
					t.Errorf("an exec says %q, %v", out, err)
				}
			})
		}
	}
	pid := n.pid()
	n.client.Close()
	n.end(pid, unix.SIGKILL)
	for _, path := range []string{program, one, other} {
		if err := spoil["flipped"](path); err != nil {
			t.Fatal(err)
		}
	}
	n.client = n.connect()
	if _, err := n.client.Exec(n.ctx(), &keeper.ExecRequest{ContainerID: "a", ExecID: "unknown",
		Process: n.process("true")}); err == nil {
		t.Error("an exec begins with a filter that nobody knows")
	}
}
