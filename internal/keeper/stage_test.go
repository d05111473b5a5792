package keeper_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/keeper"
)

// TestWhatKeepsAProgramFromRunningIsSaid, for first processes and for execs, with the exit code that shells give.
func TestWhatKeepsAProgramFromRunningIsSaid(t *testing.T) {
	n := start(t)
	write := func(name, text string, mode os.FileMode) {
		if err := os.WriteFile(filepath.Join(n.root, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("tmp/plain", "text", 0o644)
	write("tmp/text", "text", 0o755)
	write("tmp/lost", "#!/no/such/interpreter\n", 0o755)
	request := func(id string, args ...string) *keeper.RunRequest {
		req := n.request(id, args...)
		req.Spec.Linux.Seccomp = profile()
		return req
	}
	n.run(request("a", "sleep", "1000"))
	for i, tt := range []struct {
		args []string
		edit func(*specs.Process)
		code int
		want string
	}{
		{args: []string{"no-such"}, code: 127, want: "no-such"},
		{args: []string{"/no/such"}, code: 127, want: "/no/such"},
		{args: []string{"/tmp/plain"}, code: 126, want: "permission denied"},
		{args: []string{"/tmp"}, code: 126, want: "is a directory"},
		{args: []string{"/tmp/text"}, code: 128, want: "exec format error"},
		{args: []string{"/tmp/lost"}, code: 127, want: "no such file"},
		{args: []string{"busybox"}, edit: func(p *specs.Process) { p.Cwd, p.Env = "/bin", []string{"PATH=."} }, code: 127, want: "relative"},
		{args: []string{"true"}, edit: func(p *specs.Process) { p.Env = nil }, code: 127, want: "$PATH"},
		{args: []string{"true"}, edit: func(p *specs.Process) { p.Cwd = "/no/such" }, code: 128, want: "/no/such"},
		{args: []string{"true"}, edit: func(p *specs.Process) { p.Env = []string{"PATH"} }, want: "PATH"},
	} {
		req := request("b", tt.args...)
		if tt.edit != nil {
			tt.edit(req.Spec.Process)
		}
		_, first := n.client.Run(n.ctx(), req)
		_, further := n.client.Exec(n.ctx(), &keeper.ExecRequest{ContainerID: "a", ExecID: string(rune('a' + i)), Process: req.Spec.Process})
		for what, err := range map[string]error{"first process": first, "exec": further} {
			var se *keeper.StartError
			if err == nil || !strings.Contains(err.Error(), tt.want) || tt.code != 0 && (!errors.As(err, &se) || se.ExitCode != tt.code) {
				t.Errorf("%s %q: %v", what, tt.args, err)
			}
		}
	}
	if out, exit := n.exec("a", 0, "echo", "still"); out != "still\n" || exit.ExitCode != 0 {
		t.Errorf("an exec after those: %q %+v", out, exit)
	}
}

// TestAnExecCannotBeLedOut: a working directory that is a way to a descriptor of the runtime's leads nowhere.
func TestAnExecCannotBeLedOut(t *testing.T) {
	n := start(t)
	req := n.request("a", "sleep", "1000")
	req.Spec.Linux.Seccomp = profile()
	n.run(req)
	link := filepath.Join(n.root, "tmp/way")
	for fd := range 20 {
		for i, way := range []string{"/proc/self/fd/", "/proc/thread-self/fd/"} {
			target := way + strconv.Itoa(fd)
			if err := os.Symlink(target, link); err != nil {
				t.Fatal(err)
			}
			p := n.process("true")
			p.Cwd = "/tmp/way"
			_, err := n.client.Exec(n.ctx(), &keeper.ExecRequest{ContainerID: "a", ExecID: fmt.Sprint("e", i, ".", fd), Process: p})
			if err == nil {
				t.Errorf("an exec was led to %s", target)
			}
			if err := os.Remove(link); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestAPlantedTerminalOrUserDatabaseHurtsNobody: files of the container that an exec looks at may be anything.
func TestAPlantedTerminalOrUserDatabaseHurtsNobody(t *testing.T) {
	n := start(t)
	req := n.request("a", "sleep", "1000")
	req.Spec.Linux.Seccomp = profile()
	if err := unix.Mkfifo(filepath.Join(n.root, "etc/passwd"), 0o644); err != nil {
		t.Fatal(err)
	}
	n.run(req)
	p := n.process("sh", "-c", "echo $HOME")
	p.Env = []string{"PATH=/bin"}
	if out := n.execProcess("a", p); out != "/\n" {
		t.Errorf("HOME is %q", out)
	}
	// A terminal that is none.
	req = n.request("b", "sleep", "1000")
	req.Spec.Linux.Seccomp = profile()
	req.Spec.Mounts = req.Spec.Mounts[:2] // no devpts
	n.run(req)
	n.exec("b", 0, "sh", "-c", "mkdir -p /dev/pts; touch /dev/pts/ptmx")
	p = n.process("true")
	p.Terminal = true
	if _, err := n.client.Exec(n.ctx(), &keeper.ExecRequest{ContainerID: "b", ExecID: "t", Process: p}); err == nil {
		t.Error("a plain file was taken for a terminal")
	}
}
