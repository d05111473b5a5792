package life

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

func TestALoginIsCheckedAndKept(t *testing.T) {
	nodetest.BerthOnly(t, "the command speaks to Berth's own service")
	n := nodetest.Shared(t)
	for name, option := range map[string]registrytest.Option{
		"basic": registrytest.WithBasicAuth("robot", "pass:word"),
		"token": registrytest.WithTokenAuth("robot", "pass:word", ""),
	} {
		t.Run(name, func(t *testing.T) {
			r, host := broken(t, n, option)
			push(t, r, "app:1", image(t))
			file := filepath.Join(t.TempDir(), "auth", "config.json")
			login := func(password string, more ...string) (int, string, string) {
				cmd := commandLine(t, n, append([]string{"login", "-u", "robot", "--password-stdin", "--auth-file", file},
					more...)...)
				var out, complaints bytes.Buffer
				cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(password+"\n"), &out, &complaints
				_ = cmd.Run()
				return cmd.ProcessState.ExitCode(), out.String(), complaints.String()
			}
			if code, out, complaints := login("wrong", host); code != 1 || out != "" || !strings.Contains(complaints, host) ||
				strings.Contains(complaints, "wrong") || strings.Contains(complaints, "berth pull") {
				t.Errorf("a wrong password: exit code %d, %q, %q", code, out, complaints)
			}
			if _, err := os.Stat(file); err == nil {
				t.Error("wrong credentials were kept")
			}
			code, out, complaints := login("pass:word", "https://"+host+"/")
			if code != 0 || out != "logged in to "+host+" as robot\n" || complaints != "" {
				t.Errorf("exit code %d, %q, %q", code, out, complaints)
			}
			if code, _, complaints := typed(t, n, "pull", "-q", "--auth-file", file, host+"/app:1"); code != 0 {
				t.Errorf("pull: %s", complaints)
			}
			if code, _, complaints := login("wrong", host); code != 1 {
				t.Errorf("a wrong password after a good one: exit code %d, %s", code, complaints)
			}
			for _, want := range []int{0, 1} {
				if code, _, complaints := typed(t, n, "logout", "--auth-file", file, host); code != want {
					t.Errorf("logout: exit code %d, want %d: %s", code, want, complaints)
				}
			}
			typed(t, n, "rmi", host+"/app:1")
			if code, _, complaints := typed(t, n, "pull", "-q", "--auth-file", file, host+"/app:1"); code != 1 {
				t.Errorf("pull after logout: exit code %d, %s", code, complaints)
			}
		})
	}
}

func TestALoginAsksAtTheTerminal(t *testing.T) {
	nodetest.BerthOnly(t, "the command speaks to Berth's own service")
	n := nodetest.Shared(t)
	_, host := broken(t, n, registrytest.WithBasicAuth("robot", "hunter2"))
	file := filepath.Join(t.TempDir(), "config.json")
	cmd := commandLine(t, n, "login", "--auth-file", file, host)
	p := terminal(t, cmd)
	p.await(t, "user at "+host+": ")
	p.write(t, "robot\r")
	p.await(t, "password: ")
	p.write(t, "hunter2\r")
	p.await(t, "logged in to "+host+" as robot")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if strings.Contains(p.out.String(), "hunter2") {
		t.Errorf("the terminal shows the password: %q", p.out.String())
	}
	_, open := broken(t, n)
	cmd = commandLine(t, n, "login", "-u", "x", "--password-stdin", "--auth-file", file, open)
	cmd.Stdin = strings.NewReader("y")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "unchecked") {
		t.Errorf("a registry that asks for nothing: %v, %s", err, out)
	}
	for _, args := range [][]string{{"login", "a/b"}, {"login", host}, {"login", "--password-stdin", host}} {
		if code, _, complaints := typed(t, n, args...); code != 2 {
			t.Errorf("%q: exit code %d, %s", args, code, complaints)
		}
	}
}

// TestCtrlCEndsACommandThatAsks, at once and with the terminal as it was.
func TestCtrlCEndsACommandThatAsks(t *testing.T) {
	nodetest.BerthOnly(t, "the command speaks to Berth's own service")
	n := nodetest.Shared(t)
	data := filepath.Join(t.TempDir(), "data")
	if code, _, complaints := typed(t, n, "--data-dir", data, "run", "--rm=false", "--name", "asked", node.Busybox,
		"true"); code != 0 {
		t.Fatal(complaints)
	}
	for _, c := range []struct {
		args   []string
		prompt string
	}{
		{[]string{"login", "registry.example"}, "user at registry.example: "},
		{[]string{"login", "-u", "robot", "registry.example"}, "password: "},
		{[]string{"prune"}, "Remove these? [y/N] "}, {[]string{"run", "-"}, ""},
	} {
		cmd := commandLine(t, n, append([]string{"--data-dir", data}, c.args...)...)
		p := terminal(t, cmd)
		p.await(t, c.prompt)
		if c.prompt == "" { // it reads once a line that is typed has gone
			p.write(t, "# nothing\r")
			side, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/0", cmd.Process.Pid), os.O_RDWR|unix.O_NOCTTY, 0)
			if err != nil {
				t.Fatal(err)
			}
			nodetest.Eventually(t, 60*time.Second, "the command reads", func() error {
				if left, err := unix.IoctlGetInt(int(side.Fd()), unix.TIOCINQ); err != nil || left > 0 {
					return fmt.Errorf("%d bytes are left, %v", left, err)
				}
				return nil
			})
			side.Close()
		}
		p.write(t, "\x03")
		ended := make(chan struct{})
		go func() {
			_ = cmd.Wait()
			close(ended)
		}()
		select {
		case <-ended:
			if code := cmd.ProcessState.ExitCode(); code != 130 {
				t.Errorf("%q: exit code %d", c.args, code)
			}
		case <-time.After(30 * time.Second):
			t.Errorf("%q: does not end", c.args)
			_ = cmd.Process.Kill()
			<-ended
		}
		if mode, err := unix.IoctlGetTermios(int(p.Fd()), unix.TCGETS); err != nil || mode.Lflag&unix.ECHO == 0 {
			t.Errorf("%q: the terminal is left without echo: %v", c.args, err)
		}
	}
	typed(t, n, "--data-dir", data, "rm", "asked")
}
