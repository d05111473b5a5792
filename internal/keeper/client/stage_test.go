package client_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	keeper "berth/internal/keeper/client"
)

// TestWhatKeepsAProgramFromRunningIsSaid, for init processes and for execs, with the exit code that shells give.
func TestWhatKeepsAProgramFromRunningIsSaid(t *testing.T) {
	n := start(t)
	n.setup = keeper.SetupStage
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
		{args: []string{"busybox"}, edit: func(p *specs.Process) { p.Cwd, p.Env = "/bin", []string{"PATH=."} }, code: 127,
			want: "relative"},
		{args: []string{"true"}, edit: func(p *specs.Process) { p.Env = nil }, code: 127, want: "$PATH"},
		{args: []string{"true"}, edit: func(p *specs.Process) { p.Cwd = "/tmp/plain" }, code: 128, want: "/tmp/plain"},
		{args: []string{"true"}, edit: func(p *specs.Process) { p.Env = []string{"PATH"} }, want: "PATH"},
	} {
		req := request("b", tt.args...)
		if tt.edit != nil {
			tt.edit(req.Spec.Process)
		}
		_, first := n.client.Run(n.ctx(), req)
		_, further := n.client.Exec(n.ctx(), &keeper.ExecRequest{ContainerID: "a", ExecID: string(rune('a' + i)),
			Process: req.Spec.Process})
		for what, err := range map[string]error{"init process": first, "exec": further} {
			var se *keeper.StartError
			if err == nil || !strings.Contains(err.Error(), tt.want) || tt.code != 0 &&
				(!errors.As(err, &se) || se.ExitCode != tt.code) {
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
			_, err := n.client.Exec(n.ctx(), &keeper.ExecRequest{ContainerID: "a", ExecID: fmt.Sprint("e", i, ".", fd),
				Process: p})
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
	n.setup = keeper.SetupStage
	req := n.request("a", "sleep", "1000")
	req.Spec.Linux.Seccomp = profile()
	req.Spec.Process.Env = append(req.Spec.Process.Env, "A=\nroot:x:0:0::/evil:\n")
	n.run(req)
	p := n.process("sh", "-c", "echo $HOME")
	p.Env = []string{"PATH=/bin"}
	passwd := filepath.Join(n.root, "etc/passwd")
	for what, plant := range map[string]func() error{
		"a pipe": func() error { return unix.Mkfifo(passwd, 0o644) },
		// Seen to fail without the check of the file system: what such a file says is somebody else's, and some are read
		// once.
		"a link to a file of /proc": func() error { return os.Symlink("/proc/1/environ", passwd) },
		// Seen to fail without the bound.
		"a file that is too long": func() error {
			return os.WriteFile(passwd, append(bytes.Repeat([]byte("\n"), 9<<20), "root:x:0:0::/evil:\n"...), 0o644)
		},
		"a number beyond 32 bits": func() error {
			const users = "a:x:4294967296:0::/evil:\nb:x::0::/evil:\nc:x:abc:0::/evil:\nd:x:0x0:0::/evil:\n"
			return os.WriteFile(passwd, []byte(users), 0o644)
		},
	} {
		_ = os.Remove(passwd)
		if err := plant(); err != nil {
			t.Fatal(err)
		}
		if out := n.execProcess("a", p); out != "/\n" {
			t.Errorf("HOME with %s is %q", what, out)
		}
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

// TestAHostileImageLeadsNoMountOut: whatever links an image has where a container's mounts, devices and links go, these
// end up inside of the container or the container does not start. What the host has is as it was.
func TestAHostileImageLeadsNoMountOut(t *testing.T) {
	for _, choice := range []keeper.SetupChoice{keeper.SetupStage, keeper.SetupLibcontainer} {
		t.Run(string(choice), func(t *testing.T) { hostileImages(t, choice) })
	}
}

func hostileImages(t *testing.T, choice keeper.SetupChoice) {
	n := start(t)
	n.setup = choice
	victim := t.TempDir() // what the links try to reach
	for _, d := range []string{"dir", "proc", "sys"} {
		if err := os.Mkdir(filepath.Join(victim, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	source := filepath.Join(t.TempDir(), "source")
	if err := os.Mkdir(source, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(source, "inside"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	up := strings.Repeat("../", 30)
	for name, tt := range map[string]struct {
		links   map[string]string // in the image, by path
		target  string            // where source is mounted
		refused string            // what the error says; empty: it starts
		script  string            // says "good"
	}{
		"an absolute link": {links: map[string]string{"/way": victim + "/dir"}, target: "/way",
			script: "test -f " + victim + "/dir/inside && echo good"},
		"a link upwards": {links: map[string]string{"/way": up + strings.TrimPrefix(victim, "/")}, target: "/way/dir",
			script: "test -f " + victim + "/dir/inside && echo good"},
		"a link to nothing": {links: map[string]string{"/var": "/run/none", "/run": "elsewhere"}, target: "/var/a/b",
			script: "test -f /elsewhere/none/a/b/inside && echo good"},
		"a relative link to nothing": {links: map[string]string{"/a": "b/../c"}, target: "/a/x", refused: "mount point"},
		"links in a circle": {links: map[string]string{"/a": "b", "/b": "a"}, target: "/a/x",
			refused: "mount point"},
		"a link to the root": {links: map[string]string{"/way": "/"}, target: "/way",
			refused: "over the container's root"},
		"a link into proc": {links: map[string]string{"/way": "/proc/sys"}, target: "/way",
			refused: "in its /proc"},
		"a link to proc": {links: map[string]string{"/way": "/proc"}, target: "/way", refused: "in its /proc"},
		"a magic link": {links: map[string]string{"/way": "/proc/self/cwd"}, target: "/way",
			refused: "mount point"},
		"proc elsewhere": {links: map[string]string{"/proc": "/elsewhere"}, target: "/mnt", refused: "/proc"},
		"sys elsewhere":  {links: map[string]string{"/sys": victim + "/sys"}, target: "/mnt", refused: "/sys"},
		"dev elsewhere": {links: map[string]string{"/dev": "/elsewhere/dev"}, target: "/mnt",
			script: "test -c /elsewhere/dev/null && test -c /dev/null && echo good"},
		"devices that are there": {links: map[string]string{"/mnt/inside": "/x"}, target: "/mnt",
			script: "test -c /dev/null && echo good"},
	} {
		t.Run(name, func(t *testing.T) {
			n.root = rootfs(t)
			for path, to := range tt.links {
				at := filepath.Join(n.root, path)
				_ = os.RemoveAll(at)
				if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(to, at); err != nil {
					t.Fatal(err)
				}
			}
			id := strings.ReplaceAll(name, " ", "-")
			req := n.request(id, "sh", "-c", tt.script)
			req.Spec.Linux.Seccomp = profile()
			req.Spec.Mounts = append(req.Spec.Mounts,
				specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro"}},
				specs.Mount{Destination: tt.target, Type: "bind", Source: source, Options: []string{"rbind", "ro"}})
			_, err := n.client.Run(n.ctx(), req)
			if choice == keeper.SetupLibcontainer && tt.refused != "" {
				// It says so in words of its own, and makes one mount point that the stage does not.
				if err == nil && name != "a relative link to nothing" {
					t.Error("it has started")
				}
			} else if tt.refused != "" {
				if err == nil || !strings.Contains(err.Error(), tt.refused) {
					t.Errorf("%v", err)
				}
			} else {
				if err != nil {
					t.Fatal(err)
				}
				n.ended(id)
				if out := n.output("stdout", n.logPath(id)); out != "good\n" {
					t.Errorf("it says %q, %q", out, n.output("stderr", n.logPath(id)))
				}
			}
			for _, d := range []string{"dir", "proc", "sys"} {
				if found, _ := os.ReadDir(filepath.Join(victim, d)); len(found) > 0 {
					t.Errorf("on the host %s holds %v", d, found)
				}
			}
		})
	}
}

// TestAContainerThatCannotBeSetUpLeavesNothing, and says which of its mounts, namespaces, devices or settings it was.
func TestAContainerThatCannotBeSetUpLeavesNothing(t *testing.T) {
	n := start(t)
	n.setup = keeper.SetupStage
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	few := int64(4096)
	for want, edit := range map[string]func(*specs.Spec){
		`mount "/no/such/source" at "/mnt": source: no such file`: func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/mnt", Type: "bind", Source: "/no/such/source",
				Options: []string{"bind"}})
		},
		`at "/proc/sys": it is inside /proc`: func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/proc/sys", Type: "bind", Source: "/tmp",
				Options: []string{"bind"}})
		},
		`mount "` + file + `" at "/tmp": not a directory`: func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/tmp", Type: "bind", Source: file, Options: []string{"bind"}})
		},
		`mount tmpfs at "/mnt": invalid argument`: func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/mnt", Type: "tmpfs", Source: "tmpfs",
				Options: []string{"no-such=1"}})
		},
		`join namespace "` + file + `"`: func(s *specs.Spec) {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: file})
		},
		`set sysctl "kernel.msgmax" to "no number": invalid argument`: func(s *specs.Spec) {
			s.Linux.Sysctl = map[string]string{"kernel.msgmax": "no number"}
		},
		"memory limit": func(s *specs.Spec) { s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: &few} },
	} {
		req := n.request("a", "sleep", "1000")
		req.Spec.Linux.Seccomp = profile()
		edit(req.Spec)
		if _, err := n.client.Run(n.ctx(), req); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\n, and not %s", err, want)
		}
		if left, _ := filepath.Glob("/sys/fs/cgroup/*" + n.cgroup + "/a"); len(left) > 0 {
			t.Errorf("%s: cgroups are left: %v", want, left)
		}
		if left, _ := filepath.Glob(filepath.Join(n.dir, "*/a*")); len(left) > 0 {
			t.Errorf("%s: files are left: %v", want, left)
		}
	}
	n.run(n.request("a", "sleep", "1000"))
}

// TestManyContainersJoinAPodsProcesses: the stage of one that joins another's PID namespace forks, and both processes
// speak.
func TestManyContainersJoinAPodsProcesses(t *testing.T) {
	n := start(t)
	first := n.run(n.request("init", "sleep", "1000"))
	for i := range 60 {
		req := n.request(fmt.Sprint("member", i), "sh", "-c", "test $$ != 1 && exec sleep 1000")
		req.PodID, req.Spec.Linux.Seccomp = "pod-of-init", profile()
		req.Spec.Linux.Namespaces[0].Path = fmt.Sprintf("/proc/%d/ns/pid", first.PID)
		n.run(req)
		if i%2 == 0 {
			n.delete(req.ID)
		}
	}
	// The shell of the last one may still be about to execute its program.
	n.until("the pod has 31 processes", func() bool {
		processes, _ := n.exec("init", 0, "ps")
		return strings.Count(processes, "sleep 1000") == 31
	})
	// One that cannot be set up says why, and leaves no process.
	req := n.request("bad", "true")
	req.PodID, req.Spec.Linux.Seccomp = "pod-of-init", profile()
	req.Spec.Linux.Namespaces[0].Path = fmt.Sprintf("/proc/%d/ns/pid", first.PID)
	req.Spec.Mounts = append(req.Spec.Mounts, specs.Mount{Destination: "/mnt", Type: "bind", Source: "/no/such",
		Options: []string{"bind"}})
	if _, err := n.client.Run(n.ctx(), req); err == nil || !strings.Contains(err.Error(), "/no/such") {
		t.Error(err)
	}
	if left, _ := filepath.Glob("/sys/fs/cgroup/*" + n.cgroup + "/bad"); len(left) > 0 {
		t.Errorf("cgroups are left: %v", left)
	}
}
