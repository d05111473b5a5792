package life

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"berth/internal/registrytest"
	"berth/test/node/nodetest"
)

// steers is text that sets the title of a terminal, in both of the ways to write that, and that erases its screen.
const steers = "\x1b]0;owned\a\x1b[2J\u009b2J\u009d0;owned\u009c\rberth: all is well\x7f"

// tame says whether a text has no character that steers a terminal.
func tame(text string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }) < 0
}

// TestNothingThatOthersWriteSteersTheTerminal: the words of a registry, of an image and of the files of a container are
// in errors, notes and details. What a container writes itself is shown as it is. Seen to fail with the name of a file
// without table.Text, with the details of an image without table.encode, and with a template without table.onTerminal.
func TestNothingThatOthersWriteSteersTheTerminal(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	data := filepath.Join(t.TempDir(), "data")
	berth := func(args ...string) (int, string, string) {
		return typed(t, n, append([]string{"--data-dir", data}, args...)...)
	}
	hostile := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"errors": [{"code": "DENIED", "message": "` +
			strings.NewReplacer("\x1b", `\u001b`, "\a", `\u0007`, "\r", `\r`).Replace(steers) + `"}]}`))
	}))
	defer hostile.Close()
	const domain = "steers.test"
	if err := os.MkdirAll(filepath.Join(n.HostsDir, domain), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.HostsDir, domain, "hosts.toml"),
		[]byte("server = \""+hostile.URL+"\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r, host := broken(t, n)
	push(t, r, "program:1", image(t, registrytest.Entrypoint("/no/"+steers)))
	push(t, r, "label:1", image(t, registrytest.Label("title", steers)))
	if err := pull(t, n, host+"/label:1", nil); err != nil {
		t.Fatal(err)
	}
	push(t, r, "user:1", image(t, registrytest.WithBusybox(), registrytest.User(steers)))
	dir := written(t, `apiVersion: v1
kind: Pod
metadata: {name: two}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
  - name: says
    image: IMAGE
    command: [sh, -c, "printf 'own \\033[1mway\\033[0m\\n'; printf '\\033[2Jgone' >/dev/termination-log; exit 3"]
`)
	octal := strings.NewReplacer("\x1b", `\033`, "\a", `\007`, "\r", `\015`, "\x7f", `\177`)
	c := nodetest.RunPod(t, n).Run(nodetest.Sh("mkdir /d; mkfifo \"/d/$(printf '" + octal.Replace(steers) +
		"')\"; echo ready; exec sleep 600"))
	c.WaitLog("ready")
	for what, args := range map[string][]string{
		"the words of a registry": {"pull", domain + "/image:1"},
		"those of a push":         {"push", host + "/label:1", domain + "/image:1"},
		"a program":               {"run", host + "/program:1"},
		"a program, detached":     {"run", "-d", host + "/program:1"},
		"a user":                  {"run", host + "/user:1", "true"},
		"the name of a file":      {"cp", c.ID + ":/d", t.TempDir()},
		"the reason of an end":    {"run", dir},
	} {
		code, out, complaints := berth(args...)
		if what != "the reason of an end" && !tame(out) || !tame(complaints) || code == 0 {
			t.Errorf("%s: exit code %d, %q, %q", what, code, out, complaints)
		}
	}
	for _, format := range []string{"json", "yaml"} {
		code, out, complaints := berth("inspect", "-o", format, host+"/label:1")
		if code != 0 || !tame(out) || !strings.Contains(out, "owned") {
			t.Errorf("details as %s: exit code %d, %q, %s", format, code, out, complaints)
		}
	}
	template := []string{"--data-dir", data, "inspect", "-o", "go-template={{.}} THE END", host + "/label:1"}
	if code, out, complaints := typed(t, n, template...); code != 0 || !strings.Contains(out, steers) {
		t.Errorf("a template for a program: exit code %d, %q, %s", code, out, complaints)
	}
	shown := terminal(t, commandLine(t, n, template...))
	shown.await(t, "THE END")
	shown.mu.Lock()
	defer shown.mu.Unlock()
	if text := shown.out.String(); !strings.Contains(text, "owned") || !tame(strings.ReplaceAll(text, "\r\n", "\n")) {
		t.Errorf("a template on a terminal: %q", text)
	}
}
