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
)

// command runs a command line with nobody on the socket.
func command(t *testing.T, args ...string) (code int, out, complaints string) {
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
		{[]string{"ps"}, exitError, "systemctl start berthd"},
		{[]string{"pss"}, exitUsage, "unknown command"},
		{[]string{"pss"}, exitUsage, "Did you mean"},
		{[]string{"volume", "remove"}, exitUsage, "unknown command"},
		{[]string{"volume", "inspct"}, exitUsage, "Did you mean inspect?"},
		{[]string{"ps", "-o", "xml"}, exitUsage, "json, yaml, wide"},
		{[]string{"ps", "--no-such"}, exitUsage, "--help"},
		{[]string{"exec", "only-a-name"}, exitUsage, "--help"},
		{[]string{"device-plugin", "--config", "/no/such.toml"}, exitFile, "no such file"},
		{[]string{"ps", "-q", "-o", "json"}, exitUsage, "exclude"},
		{[]string{"pods", "--no-headers", "-o", "name"}, exitUsage, "for tables only"},
		{[]string{"images", "--sort-by", "colour"}, exitUsage, "image, id, size"},
		{[]string{"inspect", "x", "-o", "name"}, exitUsage, "json, yaml, jsonpath"},
		{[]string{"inspect", "x", "-o", "wide"}, exitUsage, "json, yaml, jsonpath"},
		{[]string{"version", "-o", "wide"}, exitUsage, "json, yaml, jsonpath"},
		{[]string{"ps", "-l", "a=b=c"}, exitUsage, "label selector"},
		{[]string{"pods", "-l", "a=b=c"}, exitUsage, "label selector"},
		{[]string{"rm"}, exitUsage, "--all"},
		{[]string{"checkpoint", "x"}, exitUsage, "-o"},
		{[]string{"checkpoint", "-o", "x.tar"}, exitUsage, "arg"},
		{[]string{"checkpoint", "x", "-o", "x.tar", "--timeout", "1ms"}, exitUsage, "--timeout"},
		{[]string{"rm", "--all", "x"}, exitUsage, "exclude"},
		{[]string{"rmi"}, exitUsage, "--unused"},
		{[]string{"prune"}, exitUsage, "give -f, or --dry-run"},
		{[]string{"volume", "rm"}, exitUsage, "--help"},
		{[]string{"volume", "ls"}, exitError, "systemctl start berthd"},
		{[]string{"volume", "list"}, exitUsage, "unknown command"},
		{[]string{"logs", "x", "--since", "yesterday"}, exitUsage, "--since"},
		{[]string{"run", "/no/such.yaml"}, exitError, "no such file"},
		{[]string{"run", "-"}, exitError, "no pod"},
		{[]string{"run", "-o", "json", "x.yaml"}, exitUsage, "-d"},
		{[]string{"run", "x.yaml", "-o", "json"}, exitUsage, "-d"},
		{[]string{"run", "x.yaml", "ls"}, exitUsage, "which has its commands in it"},
		{[]string{"run", "-p", "80:80", "x.yaml"}, exitUsage, "--publish is for an image"},
		{[]string{"run"}, exitUsage, "FILE or IMAGE"},
		{[]string{"run", "busybox", "ls", "-d"}, exitError, "systemctl start berthd"},
		{[]string{"run", "-d", "--rm", "busybox"}, exitUsage, "nothing runs that could remove"},
		{[]string{"run", "-it", "busybox"}, exitUsage, "not a terminal"},
		{[]string{"run", "-p", "80", "busybox"}, exitUsage, "8080:80"},
		{[]string{"run", "--ignore-unsupported", "busybox"}, exitUsage, "is for a manifest"},
		{[]string{"pull", "x", "--platform", "linux/s390x"}, exitUsage, "qemu-user"},
		{[]string{"pull", "x", "--platform", "windows/" + runtime.GOARCH}, exitUsage, "this node runs linux/"},
		{[]string{"pull", "x", "--platform", "a/b/c/d"}, exitUsage, "is no OS/ARCHITECTURE"},
		{[]string{"pull", "x", "--platform", "linux/" + runtime.GOARCH}, exitError, "systemctl start berthd"},
		{[]string{"pull", "x", "-u", "me"}, exitUsage, "--password-stdin"},
		{[]string{"inspect", "x", "--type", "node"}, exitUsage, "pod, container and image"},
		{[]string{"stats", "--interval", "1ms"}, exitUsage, "100ms"},
		{[]string{"ps", "--address", "tcp://x"}, exitError, "unix"},
	} {
		code, _, says := command(t, c.args...)
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
	if code, _, says := command(t, "pods", "--address", path); code != exitError ||
		!strings.Contains(says, "its daemon is gone") {
		t.Errorf("exit code %d: %s", code, says)
	}
}

func TestTheVersionIsKnownWithoutADaemon(t *testing.T) {
	code, out, _ := command(t, "version", "-o", "json")
	if code != 0 || !strings.Contains(out, `"client": "test"`) || !strings.Contains(out, `"error"`) {
		t.Errorf("exit code %d: %s", code, out)
	}
}

func TestTheVersionIsAFlagToo(t *testing.T) {
	if code, out, _ := command(t, "--version"); code != 0 || out != "berth version test\n" {
		t.Errorf("exit code %d: %q", code, out)
	}
}

func TestCompletionWithoutADaemonOffersNothing(t *testing.T) {
	code, out, _ := command(t, "__complete", "logs", "")
	if code != 0 || !strings.HasPrefix(out, ":4") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

func TestEveryCommandIsInTheDocs(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range (&app{}).root().Commands() {
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
	for _, cmd := range (&app{}).root().Commands() {
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

func TestSinceIsATimeOrASpan(t *testing.T) {
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"": {}, "10m": now.Add(-10 * time.Minute), "2026-01-31T11:00:00Z": now.Add(-time.Hour),
		"1769853600": time.Unix(1769853600, 0),
	} {
		if got, err := parseSince(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}
