package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/internal/registrytest"
	"berth/test/node"
)

// TestTheExamplesOfTheDocumentsWork types each command of berth, and of `berthd config`, that README.md, docs/*.md and
// `berth COMMAND --help` print, in the order in which it is printed, on a private node. The registry on loopback has
// images of the same names as the public ones, with Debian's busybox in them, so the test needs no network. A command
// that is printed and neither works nor is listed in triedElsewhere fails the test.
func TestTheExamplesOfTheDocumentsWork(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a container runtime needs root")
	}
	ctx, cancel := context.WithTimeout(context.Background(), node.Patience(4*time.Minute)) // about 150 commands
	defer cancel()
	root, err := node.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	d := exampleNode(ctx, t)
	p := newTypist(ctx, t, d, root)
	seen := map[string]bool{}
	for _, s := range append(pages(t, root), helpTexts(ctx, t, d)...) {
		t.Run(s.name, func(t *testing.T) { p.typeAll(ctx, t, s, seen) })
	}
	for line := range expected {
		if !seen[line] {
			t.Errorf("no document prints %q: take it out of this test", line)
		}
	}
	for line := range triedElsewhere {
		if !seen[line] {
			t.Errorf("no document prints %q: take it out of triedElsewhere", line)
		}
	}
	d.must(ctx, t, nil, "rm", "--all", "--force")
	if out := d.must(ctx, t, nil, "ps", "-a", "-q"); out != "" {
		t.Errorf("containers are left:\n%s", out)
	}
}

// triedElsewhere are the commands that this test does not type, and why.
var triedElsewhere = map[string]string{
	"berth doctor":        "what it finds is the machine's; test/life types it",
	"berthd config check": "what it finds is the machine's; internal/config/check",
	"berth checkpoint hello/web -o /var/tmp/web.tar":            "it needs criu; test/life types it",
	"berth checkpoint --pod hello -o /var/tmp/hello":            "it needs criu; test/life types it",
	"berth run -d --restore /var/tmp/hello examples/hello.yaml": "it needs criu; test/life types it",
	"berth rm --force hello":                                    "as the line before",
}

// expectation says how an example is typed and what it shows. An example without one has no input and ends with 0.
type expectation struct {
	in   string // standard input
	says string // a regular expression
	// until: the command goes on. It is typed on a terminal, and Ctrl-C ends it once it has shown what it should.
	until bool
	// tty: the command is typed on a terminal.
	tty bool
	// before is what a person does before this command.
	before func(p *typist) error
	// meanwhile is done while the command goes on, again and again until it has shown what it should.
	meanwhile func(p *typist)
}

// expected are the examples that need more than to end with 0.
var expected = map[string]expectation{
	"berth migrate containerd --dry-run": {
		says: `^would write .*/config\.d/50-containerd\.toml:$`,
	},
	"berth migrate containerd": {says: `^keys of containerd: [1-9]`},

	"berth migrate containerd --kubelet-config /var/lib/kubelet/config.yaml": {says: `^keys of containerd: [1-9]`},

	"berth migrate containerd --revert": {},
	"berth migrate crio --dry-run":      {says: `^would write .*/config\.d/50-crio\.toml:$`},
	"berthd config default":             {says: `^\[network\]$`},
	"berthd config dump":                {says: `^\[network\]$`},
	"berth ps": {
		says: `hello/web +running .* docker.io/library/busybox:1.37`,
	},
	"berth exec hello/web wget -qO- http://127.0.0.1/": {says: `^Hello from pod hello at `},
	"berth port-forward hello 8080:80": {says: `Hello from pod hello at `, until: true, meanwhile: func(p *typist) {
		if text, err := get(p.ctx, fmt.Sprintf("http://127.0.0.1:%d/", p.port)); err == nil {
			_, _ = io.WriteString(p.shown, text)
		}
	}},
	"berth dashboard --listen 127.0.0.1:8080": {says: `^http://127\.0\.0\.1:[0-9]+/#token=[A-Z0-9]{26}`, until: true},

	"berth logs hello/web": {says: `url:/`},
	"berth exec -it hello/web sh": {in: "echo I am $(hostname)\nexit\n",
		tty: true, says: `I am hello\b`},
	"berth run -it docker.io/library/busybox:1.37 sh": {in: "echo I am $(hostname)\nexit\n",
		tty: true, says: `I am busybox-`},
	"berth images -o wide": {
		says: `registry.example/model:1 .* application/vnd.example.model`},
	"berth inspect registry.example/model:1": {
		says: `application/vnd.example.model`},
	"berth push registry.example/model:1 registry.example/backup/model:1": {
		says: `^sha256:`},
	"berth login registry.example": {in: "robot\nsecret\n", tty: true,
		says: `logged in to registry.example as robot`},
	"berth timeline hello":                                 {says: `in all .* ms`},
	"berth inspect NAME":                                   {says: `"podIP|"ip"`},
	"berth pods; berth ps -a":                              {says: `(?s)hello .*hello/web `},
	"berth bundle":                                         {says: `^berth-bundle-.*\.tar\.gz$`},
	"docker save busybox:1.36 | berth load":                {says: `^sha256:.* docker.io/library/busybox:1.36`},
	"docker save busybox | berth load":                     {says: `^sha256:.* docker.io/library/busybox:1.36`},
	"berth load -i busybox.tar":                            {says: `^sha256:.* docker.io/library/busybox:1.36`},
	"berth push registry.example/busybox:1.36":             {says: `^sha256:`},
	"berth push registry.example/web:2":                    {says: `^sha256:`},
	"berth rm --all --force && berth rmi --unused --force": {says: `^hello$`},
	"berth volume create data":                             {says: `^data$`},
	"berth volume ls":                                      {says: `^data `},
	"berth volume inspect data":                            {says: `"data"`},
	"berth volume rm data":                                 {says: `^data$`},
	"berth exec -u nobody -e DEBUG=1 -w /tmp hello env":    {says: `^DEBUG=1`},
	"berth kill -s TERM hello/web && berth wait hello/web": {says: `^0$`},
	"berth logs -f --all-containers hello":                 {says: `url:/`, until: true, meanwhile: visit},
	"berth logs -l app=hello --tail 20":                    {},
	"berth run examples/hello.yaml":                        {says: `url:/`, until: true, meanwhile: visit},
	"kubectl get pod web -o yaml | berth run -":            {says: `^pod default/web runs at`, until: true},
	"berth device-plugin --check --config device-plugin.toml": {says: `example.com/null`, before: func(p *typist) error {
		// The default file offers nothing until somebody edits it.
		return os.WriteFile(filepath.Join(p.dir, "device-plugin.toml"),
			[]byte("[[resource]]\nname = \"example.com/null\"\nnodes = [\"/dev/null\"]\n"), 0o600)
	}},
	"berth apply --once examples": {says: `^pod default/hello runs at`, before: func(p *typist) error {
		p.quietly("berth", "rm", "-f", "hello")
		return nil
	}},
	"berth apply /etc/berth/manifests": {says: `^pod default/kept runs at`, until: true, before: func(p *typist) error {
		p.quietly("sh", "-c", `mkdir "$0" && sed 's/^  name: hello$/  name: kept/' examples/hello.yaml >"$0/kept.yaml"
			berth down examples && berth run -d examples/hello.yaml`, filepath.Join(p.dir, "manifests"))
		return nil
	}},
	"berth events -n kube-system": {says: `kube-system/hello`, until: true, meanwhile: func(p *typist) {
		p.quietly("sh", "-c", `sed '/^  name: hello/a\  namespace: kube-system' examples/hello.yaml |
			berth run -d --replace -`)
	}},
	`berth events -o json | jq -c 'select(.event == "stopped")'`: {says: `^{.*"event":"stopped"`, until: true,
		meanwhile: func(p *typist) { p.quietly("berth", "run", "-d", "--replace", "examples/hello.yaml") }},
}

// visit asks the web server of pod hello for a page, which it logs.
func visit(p *typist) { p.quietly("berth", "exec", "hello/web", "wget", "-qO-", "http://127.0.0.1/") }

// typist types examples into a shell, in a directory where the files that they name are.
type typist struct {
	ctx    context.Context
	d      *demo
	dir    string            // the working directory
	bin    string            // berth, and programs that examples name and that stand for others
	port   int               // of this machine, for the 8080 of examples
	places *strings.Replacer // paths and ports that are not the test's to use
	shown  *synced           // what the command shows
}

func newTypist(ctx context.Context, t *testing.T, d *demo, root string) *typist {
	t.Helper()
	port, err := node.Port()
	if err != nil {
		t.Fatal(err)
	}
	p := &typist{ctx: ctx, d: d, dir: t.TempDir(), bin: t.TempDir(), port: port}
	p.places = strings.NewReplacer("/etc/berth/", p.dir+"/", "/var/tmp/", p.dir+"/", " 8080:", fmt.Sprintf(" %d:", port),
		"127.0.0.1:8080", fmt.Sprintf("127.0.0.1:%d", port),
		" NAME", " hello", " POD", " hello",
		"/var/lib/kubelet/", p.dir+"/",
		"migrate containerd", "migrate containerd --to berth --config containerd.toml --root cd",
		"migrate crio", "migrate crio --to berth --config crio.conf --containers registries")
	// What `berth migrate` translates: the configurations of a containerd without images, and of CRI-O, and a kubelet's.
	for name, text := range map[string]string{
		"containerd.toml": "version = 3\n",
		"crio.conf":       "[crio.runtime]\npids_limit = 100\n",
		"config.yaml":     "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n",
	} {
		if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(root, "examples"), filepath.Join(p.dir, "examples")); err != nil {
		t.Fatal(err)
	}
	d.must(ctx, t, nil, "pull", "-q", "busybox:1.36", "nginx:1.27")
	d.must(ctx, t, nil, "tag", "busybox:1.36", "registry.example/web:2")
	saved := filepath.Join(p.dir, "busybox.tar")
	d.must(ctx, t, nil, "save", "-o", saved, "busybox:1.36")
	// `docker save` has another program's archive, and kubectl a cluster, only on machines that have them.
	cluster := filepath.Join(root, "test", "demo", "testdata", "kubectl.yaml")
	for name, file := range map[string]string{"docker": saved + ".docker", "kubectl": cluster} {
		script := fmt.Sprintf("#!/bin/sh\nexec cat %s\n", file)
		if err := os.WriteFile(filepath.Join(p.bin, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(saved, saved+".docker"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"berth", "berthd"} {
		if err := os.Symlink(filepath.Join(d.binaries, name), filepath.Join(p.bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// typeAll types the examples of a section. Pod hello runs before, unless one of them runs it.
func (p *typist) typeAll(ctx context.Context, t *testing.T, s section, seen map[string]bool) {
	p.d.must(ctx, t, nil, "rm", "--all", "--force")
	runs := func(e example) bool {
		_, elsewhere := triedElsewhere[e.line]
		return strings.Contains(e.line, "berth run ") && !elsewhere
	}
	if !slices.ContainsFunc(s.examples, runs) {
		p.d.must(ctx, t, nil, "run", "-d", filepath.Join(p.dir, "examples", "hello.yaml"))
	}
	for _, e := range s.examples {
		line, _, _ := strings.Cut(e.line, " #")
		line = strings.TrimSpace(line)
		seen[line] = true
		if _, elsewhere := triedElsewhere[line]; elsewhere {
			continue
		}
		begin := time.Now()
		p.typeOne(t, e, expected[line])
		t.Logf("%v: %s\n%s", time.Since(begin).Round(time.Millisecond), e.line, plain(p.shown))
	}
}

// typeOne types an example as it is printed, its comment included.
func (p *typist) typeOne(t *testing.T, e example, want expectation) {
	t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, node.Patience(time.Minute))
	defer cancel()
	says := regexp.MustCompile("(?m)" + want.says)
	line := p.places.Replace(e.line)
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	if want.until || want.tty {
		cmd = exec.CommandContext(ctx, "script", "--quiet", "--return", "--command", line, os.DevNull)
	}
	p.shown = &synced{}
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, p.shown, p.shown
	cmd.Env = p.environment()
	// A command that hangs is ended with all that it has started.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 30 * time.Second
	if want.before != nil {
		if err := want.before(p); err != nil {
			t.Fatal(err)
		}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if want.until {
		err = p.watch(says, want.meanwhile, ended)
		_, _ = io.WriteString(in, "\x03")
		if err == nil {
			if <-ended; ctx.Err() != nil {
				err = errors.New("Ctrl-C does not end it")
			}
		}
	} else {
		_, _ = io.WriteString(in, want.in)
		if !want.tty { // script ends the command with its input
			in.Close()
		}
		err = <-ended
	}
	if out := plain(p.shown); err != nil || !says.MatchString(out) {
		t.Errorf("%s: %s: %v, and what it shows should match %q:\n%s", e.where, e.line, err, want.says, out)
	}
}

// environment has berth and its stand-ins before other programs, and the private node's address.
func (p *typist) environment() []string {
	return append(os.Environ(), "PATH="+p.bin+":"+os.Getenv("PATH"), "BERTH_ADDRESS="+p.d.node.Address,
		"BERTH_DATA_DIR="+p.d.dataDir, "SHELL=/bin/sh", // the user's own credentials are not touched
		"REGISTRY_AUTH_FILE="+filepath.Join(p.dir, "auth.json"))
}

// quietly runs a command whose output and failure do not matter, since it is run again until its effect is seen.
func (p *typist) quietly(name string, args ...string) {
	cmd := exec.CommandContext(p.ctx, "env", append([]string{name}, args...)...)
	cmd.Dir, cmd.Env = p.dir, p.environment()
	_ = cmd.Run()
}

// colors are what programs add to their output on a terminal.
var colors = regexp.MustCompile("\x1b\\[[0-9;]*m|\r")

// plain is what is shown, without colors and carriage returns.
func plain(shown *synced) string { return colors.ReplaceAllString(shown.String(), "") }

// watch waits until a command that goes on has shown what it should. A command that ends before is an error.
func (p *typist) watch(says *regexp.Regexp, meanwhile func(*typist), ended chan error) error {
	for !says.MatchString(plain(p.shown)) {
		select {
		case err := <-ended:
			return fmt.Errorf("it has ended early: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
		if meanwhile != nil {
			meanwhile(p)
		}
	}
	return nil
}

// exampleNode is a private node that finds the registries of the examples on loopback.
func exampleNode(ctx context.Context, t *testing.T) *demo {
	t.Helper()
	binaries, err := node.Binaries(ctx)
	if err != nil {
		t.Fatal(err)
	}
	registry, err := registrytest.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { registry.Close() })
	image, err := registrytest.Image(registrytest.WithBusybox(),
		registrytest.WithFiles(map[string]string{"srv/.keep": ""}))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"library/busybox:1.37", "library/busybox:1.36", "library/nginx:1.27"} {
		if err := registry.Push(name, image); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := registry.PushArtifact("model", "1", registrytest.Artifact{Type: "application/vnd.example.model",
		Files: []registrytest.ArtifactFile{registrytest.TitledFile("weights", "0.1 0.2")}}); err != nil {
		t.Fatal(err)
	}
	n, err := node.Start(ctx, node.Options{Registry: registry, Binaries: binaries})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := registry.HostsDir(n.HostsDir, "docker.io", "registry.example"); err != nil {
		t.Fatal(err)
	}
	d := &demo{binaries: binaries, node: n, dataDir: filepath.Join(n.Dir, "cli"), began: time.Now()}
	return d
}

// must runs a command of berth with an input, or none, and returns its standard output. A command that fails ends
// the test.
func (d *demo) must(ctx context.Context, t *testing.T, in io.Reader, args ...string) string {
	t.Helper()
	var complaints bytes.Buffer
	cmd := d.command(ctx, args...)
	cmd.Stdin, cmd.Stderr = in, &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("berth %s: %v\n%s%s", strings.Join(args, " "), err, out, complaints.String())
	}
	return string(out)
}
