package cli

import (
	"bytes"
	"context"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"berth/internal/cli/command"
)

// berth runs a command line with nobody on the socket.
func berth(t *testing.T, args ...string) (code int, out, complaints string) {
	t.Helper()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	var stdout, stderr bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dir := t.TempDir()
	code = run(ctx, "test", append([]string{"--address", filepath.Join(dir, "s"), "--data-dir", dir}, args...),
		null, &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func TestErrorsSayWhatToTry(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"ps"}, command.ExitError, "systemctl start berthd"},
		{[]string{"pss"}, command.ExitUsage, "unknown command"},
		{[]string{"pss"}, command.ExitUsage, "Did you mean"},
		{[]string{"volume", "remove"}, command.ExitUsage, "unknown command"},
		{[]string{"volume", "inspct"}, command.ExitUsage, "Did you mean inspect?"},
		{[]string{"ps", "-o", "xml"}, command.ExitUsage, "json, yaml, wide"},
		{[]string{"ps", "--no-such"}, command.ExitUsage, "--help"},
		{[]string{"exec", "only-a-name"}, command.ExitUsage, "--help"},
		{[]string{"device-plugin", "--config", "/no/such.toml"}, command.ExitFile, "no such file"},
		{[]string{"migrate", "containerd", "--dry-run", "--config", "/no/such.toml"}, command.ExitError, "no such file"},
		{[]string{"migrate", "crio", "--dry-run", "--config", "/no/such.conf"}, command.ExitError, "no such file"},
		{[]string{"ps", "-q", "-o", "json"}, command.ExitUsage, "exclude"},
		{[]string{"pods", "--no-headers", "-o", "name"}, command.ExitUsage, "for tables only"},
		{[]string{"images", "--sort-by", "colour"}, command.ExitUsage, "image, id, size"},
		{[]string{"inspect", "x", "-o", "name"}, command.ExitUsage, "json, yaml, jsonpath"},
		{[]string{"inspect", "x", "-o", "wide"}, command.ExitUsage, "json, yaml, jsonpath"},
		{[]string{"version", "-o", "wide"}, command.ExitUsage, "json, yaml, jsonpath"},
		{[]string{"ps", "-l", "a=b=c"}, command.ExitUsage, "label selector"},
		{[]string{"pods", "-l", "a=b=c"}, command.ExitUsage, "label selector"},
		{[]string{"rm"}, command.ExitUsage, "--all"},
		{[]string{"checkpoint", "x"}, command.ExitUsage, "-o"},
		{[]string{"checkpoint", "-o", "x.tar"}, command.ExitUsage, "arg"},
		{[]string{"checkpoint", "--pod", "x"}, command.ExitUsage, "no directory is given"},
		{[]string{"run", "--restore", "/x", "-d", "busybox:1"}, command.ExitUsage, "--restore is for a manifest"},
		{[]string{"checkpoint", "x", "-o", "x.tar", "--timeout", "1ms"}, command.ExitUsage, "--timeout"},
		{[]string{"rm", "--all", "x"}, command.ExitUsage, "exclude"},
		{[]string{"rmi"}, command.ExitUsage, "--unused"},
		{[]string{"prune"}, command.ExitUsage, "give -f, or --dry-run"},
		{[]string{"volume", "rm"}, command.ExitUsage, "--help"},
		{[]string{"volume", "ls"}, command.ExitError, "systemctl start berthd"},
		{[]string{"volume", "list"}, command.ExitUsage, "unknown command"},
		{[]string{"logs", "x", "--since", "yesterday"}, command.ExitUsage, "--since"},
		{[]string{"run", "/no/such.yaml"}, command.ExitError, "no such file"},
		{[]string{"run", "-"}, command.ExitError, "no pod"},
		{[]string{"run", "-o", "json", "x.yaml"}, command.ExitUsage, "-d"},
		{[]string{"run", "x.yaml", "-o", "json"}, command.ExitUsage, "-d"},
		{[]string{"run", "x.yaml", "ls"}, command.ExitUsage, "which has its commands in it"},
		{[]string{"run", "-p", "80:80", "x.yaml"}, command.ExitUsage, "--publish is for an image"},
		{[]string{"run"}, command.ExitUsage, "FILE or IMAGE"},
		{[]string{"run", "busybox", "ls", "-d"}, command.ExitError, "systemctl start berthd"},
		{[]string{"run", "-d", "--rm", "busybox"}, command.ExitUsage, "nothing runs that could remove"},
		{[]string{"run", "-it", "busybox"}, command.ExitUsage, "not a terminal"},
		{[]string{"run", "-p", "80", "busybox"}, command.ExitUsage, "8080:80"},
		{[]string{"run", "--ignore-unsupported", "busybox"}, command.ExitUsage, "is for a manifest"},
		{[]string{"pull", "x", "--platform", "linux/s390x"}, command.ExitUsage, "qemu-user"},
		{[]string{"pull", "x", "--platform", "windows/" + runtime.GOARCH}, command.ExitUsage, "this node runs linux/"},
		{[]string{"pull", "x", "--platform", "a/b/c/d"}, command.ExitUsage, "is no OS/ARCHITECTURE"},
		{[]string{"pull", "x", "--platform", "linux/" + runtime.GOARCH}, command.ExitError, "systemctl start berthd"},
		{[]string{"pull", "x", "--all-platforms"}, command.ExitUsage, "own platform only"},
		{[]string{"ps", "--address", "/"}, command.ExitError, "is a directory"},
		{[]string{"inspect", "x", "-o", "name"}, command.ExitUsage, `"name" is for lists`},
		{[]string{"ps", "-o", "foo"}, command.ExitUsage, "table, name, jsonpath"},
		{[]string{"pull", "x", "-u", "me"}, command.ExitUsage, "--password-stdin"},
		{[]string{"inspect", "x", "--type", "node"}, command.ExitUsage, "pod, container and image"},
		{[]string{"stats", "--interval", "1ms"}, command.ExitUsage, "100ms"},
		{[]string{"ps", "--address", "tcp://x"}, command.ExitUsage, "unix"},
		{[]string{"run", "busybox", "--address", "tcp://x"}, command.ExitError, "systemctl start berthd"},
		{[]string{"port-forward", "hello", "abc"}, command.ExitUsage, "no port or pair of ports"},
		{[]string{"apply", "/", "--username", "x"}, command.ExitUsage, "--password-stdin"},
		{[]string{"exec", "-e", "=x", "a", "b"}, command.ExitUsage, `--env "=x"`},
		{[]string{"exec", "-e", "X=\xff", "a", "b"}, command.ExitUsage, "is not UTF-8"},
		{[]string{"exec", "-w", "relative", "a", "b"}, command.ExitUsage, "is not an absolute path"},
		{[]string{"exec", "-it", "a", "b"}, command.ExitUsage, "not a terminal"},
		{[]string{"kill", "-s", "NOSUCH", "a"}, command.ExitUsage, `signal "NOSUCH"`},
		{[]string{"volume", "prune"}, command.ExitUsage, "give -f, or --dry-run"},
		{[]string{"rmi", "--unused"}, command.ExitUsage, "give -f, or --dry-run"},
		{[]string{"rmi", "-f", "busybox"}, command.ExitUsage, "are for --unused"},
		{[]string{"version", "-o", "json"}, command.ExitError, "systemctl start berthd"},
	} {
		code, _, says := berth(t, c.args...)
		if code != c.code || !strings.Contains(says, c.says) {
			t.Errorf("berth %s: exit code %d, want %d: %s", strings.Join(c.args, " "), code, c.code, says)
		}
	}
}

func TestADeadSocketIsToldFromNone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if code, _, says := berth(t, "pods", "--address", path); code != command.ExitError ||
		!strings.Contains(says, "its daemon is gone") {
		t.Errorf("exit code %d: %s", code, says)
	}
}

func TestTheVersionIsKnownWithoutADaemon(t *testing.T) {
	code, out, _ := berth(t, "version", "-o", "json")
	if code != command.ExitError || !strings.Contains(out, `"client": "test"`) || !strings.Contains(out, `"error"`) {
		t.Errorf("exit code %d: %s", code, out)
	}
}

func TestTheVersionIsAFlagToo(t *testing.T) {
	if code, out, _ := berth(t, "--version"); code != 0 || out != "berth version test\n" {
		t.Errorf("exit code %d: %q", code, out)
	}
}

func TestCompletionWithoutADaemonOffersNothing(t *testing.T) {
	code, out, _ := berth(t, "__complete", "logs", "")
	if code != 0 || !strings.HasPrefix(out, ":4") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

func TestEveryCommandIsInTheDocs(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range Command("test").Commands() {
		if !cmd.IsAvailableCommand() || cmd.Name() == "help" {
			continue
		}
		if !strings.Contains(string(page), "`"+cmd.Name()) && !strings.Contains(string(page), "`berth "+cmd.Name()) {
			t.Errorf("docs/cli.md does not speak of %s", cmd.Name())
		}
	}
}

// TestTheComparisonIsTrue: the table that sets berth beside other tools has each of its commands and no other, and a
// reason in each row in which they have one and berth has none.
func TestTheComparisonIsTrue(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(page), "## Beside podman")
	if !ok {
		t.Fatal("docs/cli.md has no such table")
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	missing := map[string]bool{}
	for _, cmd := range Command("test").Commands() {
		if cmd.IsAvailableCommand() && cmd.Name() != "help" {
			missing[cmd.Name()] = true
		}
	}
	missing["completion"] = true // cobra adds it when a command line is run
	known := maps.Clone(missing)
	for line := range strings.Lines(rest) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 8 || !strings.Contains(line, "`") {
			continue
		}
		own := strings.TrimSpace(cells[2])
		if own == "" && strings.TrimSpace(cells[6]) == "" {
			t.Errorf("no reason: %s", line)
		}
		for _, name := range regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(own, -1) {
			if name[1] == "top" { // another name of stats
				continue
			}
			if !known[name[1]] {
				t.Errorf("berth has no command %q", name[1])
			}
			delete(missing, name[1])
		}
	}
	for name := range missing {
		t.Errorf("the table does not have %s", name)
	}
}

// TestHelpFitsIntoATerminal of 80 columns, but for examples, which are typed as they are.
func TestHelpFitsIntoATerminal(t *testing.T) {
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		path := strings.Fields(cmd.CommandPath())[1:]
		code, out, complaints := berth(t, append(path, "--help")...)
		if code != 0 {
			t.Errorf("berth %s --help: %d, %s", strings.Join(path, " "), code, complaints)
		}
		examples, _, _ := strings.Cut(out, "\nFlags:")
		_, examples, _ = strings.Cut(examples, "\nExamples:\n")
		for line := range strings.Lines(out) {
			line = strings.TrimRight(line, "\n")
			if utf8.RuneCountInString(line) > 80 && !strings.Contains(examples, line) {
				t.Errorf("berth %s --help: %s", strings.Join(path, " "), line)
			}
		}
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(Command("test"))
}

// TestHelpIsWrittenOrFails: as for other output, a pipe that nobody reads is no error, and a disk that is full is one.
// What is no command has no help. Seen to fail with cobra's own help, which ended with 0 each time.
func TestHelpIsWrittenOrFails(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"help"}, 0, "Pods and containers:"},
		{[]string{"help", "volume", "ls"}, 0, "berth volume ls"},
		{[]string{"help", "nosuch"}, command.ExitUsage, `unknown command "nosuch" for "berth"`},
		{[]string{"help", "volume", "nosuch"}, command.ExitUsage, `unknown command "nosuch" for "berth volume"`},
		{[]string{"help", "volum"}, command.ExitUsage, "Did you mean volume?"},
		{[]string{"help", "ps", "x"}, command.ExitUsage, `unknown command "x"`},
	} {
		code, out, complaints := berth(t, c.args...)
		if code != c.code || !strings.Contains(out+complaints, c.says) || code == 0 && complaints != "" {
			t.Errorf("%q: exit code %d, %q", c.args, code, complaints)
		}
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	reader, closed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer closed.Close()
	reader.Close()
	for _, args := range [][]string{{"help"}, {"--help"}, {"help", "run"}, {"run", "--help"}, nil} {
		var complaints bytes.Buffer
		if code := run(t.Context(), "test", args, os.Stdin, full, &complaints); code != command.ExitError ||
			!strings.Contains(complaints.String(), "no space left on device") {
			t.Errorf("%q to a full disk: exit code %d, %q", args, code, complaints.String())
		}
		complaints.Reset()
		if code := run(t.Context(), "test", args, os.Stdin, closed, &complaints); code != 0 || complaints.Len() > 0 {
			t.Errorf("%q to a pipe that nobody reads: exit code %d, %q", args, code, complaints.String())
		}
	}
}
