package life

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// typed runs a command line of berth on a node.
func typed(t *testing.T, n *node.Node, args ...string) (code int, out, complaints string) {
	t.Helper()
	binaries, err := node.Binaries(nodetest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(nodetest.Context(t), filepath.Join(binaries, "berth"),
		append([]string{"--address", n.Address}, args...)...)
	// A pod that no --data-dir is given for leaves nothing in the machine's own directory.
	cmd.Env = append(os.Environ(), "BERTH_DATA_DIR="+filepath.Join(t.TempDir(), "data"))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatalf("berth %s: %v", strings.Join(args, " "), err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

func TestTheCommandLinePullsOnAfterAFailure(t *testing.T) {
	nodetest.BerthOnly(t, "the command speaks to Berth's own service")
	n := nodetest.Shared(t)
	nodetest.Pull(t, n, node.Busybox)
	missing := "127.0.0.1:1/missing:1" // nobody listens on port 1
	code, out, complaints := typed(t, n, "pull", "-q", missing, node.Busybox)
	if code != 1 || strings.Count(out, "\n") != 1 || !strings.Contains(complaints, "pull "+missing+": ") {
		t.Errorf("exit code %d, %q, %q", code, out, complaints)
	}
}

// TestTheCommandLineGoesOnAfterANameThatIsNotThere: what else is named is stopped and removed, and each name that is
// not there is told.
func TestTheCommandLineGoesOnAfterANameThatIsNotThere(t *testing.T) {
	nodetest.BerthOnly(t, "the command speaks to Berth's own service")
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	for _, command := range [][]string{{"stop", "-t", "0"}, {"rm", "-f"}} {
		code, out, complaints := typed(t, n, append(command, "no-first", p.ID, "no-second")...)
		if code != 1 || !strings.Contains(out, p.Config.Metadata.Name) ||
			!strings.Contains(complaints, `"no-first"`) || !strings.Contains(complaints, `"no-second"`) {
			t.Errorf("%v: exit code %d, %q, %q", command, code, out, complaints)
		}
	}
	list, err := n.Runtime.ListPodSandbox(nodetest.Context(t),
		&cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{Id: p.ID}})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("the pod is there after it was removed: %v, %v", list, err)
	}
}

// TestTheCommandLineWaitsOnAfterANameThatIsNotThere, and prints the exit codes of the others. Seen to fail where an
// unknown name ends the command.
func TestTheCommandLineWaitsOnAfterANameThatIsNotThere(t *testing.T) {
	nodetest.BerthOnly(t, "the command speaks to Berth's own service")
	n := nodetest.Shared(t)
	c := nodetest.RunPod(t, n).Run(nodetest.Sh("exit 7"))
	code, out, complaints := typed(t, n, "wait", "no-first", c.ID, "no-second")
	if code != 1 || out != "7\n" || !strings.Contains(complaints, `"no-first"`) ||
		!strings.Contains(complaints, `"no-second"`) {
		t.Errorf("exit code %d, %q, %q", code, out, complaints)
	}
}

// TestTheCommandLineProposesNamesOfImages: each command that takes an image which is there, as rmi does. Seen to fail
// with the error of the call alone.
func TestTheCommandLineProposesNamesOfImages(t *testing.T) {
	nodetest.BerthOnly(t, "the command speaks to Berth's own service")
	n := nodetest.Shared(t)
	nodetest.Pull(t, n, node.Busybox)
	wrong := strings.Replace(node.Busybox, "busybox", "busyboy", 1)
	archive := filepath.Join(t.TempDir(), "archive.tar")
	for _, command := range [][]string{
		{"rmi", wrong}, {"pin", wrong}, {"unpin", wrong}, {"tag", wrong, "127.0.0.1:1/other:1"}, {"push", wrong},
		{"save", wrong}, {"save", "-o", archive, node.Busybox, wrong}, {"inspect", wrong},
	} {
		code, _, complaints := typed(t, n, command...)
		if code != 1 || !strings.Contains(complaints, wrong) || !strings.Contains(complaints, "Did you mean") ||
			!strings.Contains(complaints, node.Busybox) {
			t.Errorf("%v: exit code %d, %q", command, code, complaints)
		}
	}
	if _, err := os.Stat(archive); !os.IsNotExist(err) {
		t.Errorf("an archive without one of its images is left: %v", err)
	}
}

func TestTheCommandLineListsNamesAndIDs(t *testing.T) {
	nodetest.BerthOnly(t, "the command speaks to Berth's own service")
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run()
	name := p.Config.Metadata.Name
	if p.Config.Metadata.Namespace != "default" {
		name = p.Config.Metadata.Namespace + "/" + name
	}
	for want, args := range map[string][]string{
		c.ID:                                {"ps", "-q", p.ID},
		name + "/" + c.Config.Metadata.Name: {"ps", "-o", "name", p.ID},
	} {
		if code, out, complaints := typed(t, n, args...); code != 0 || out != want+"\n" {
			t.Errorf("%v: exit code %d, %q, want %q: %s", args, code, out, want, complaints)
		}
	}
	for _, list := range []string{"ps", "pods"} {
		if code, out, complaints := typed(t, n, list, "-q", "-n", "nobody-has-it"); code != 0 || out != "" {
			t.Errorf("%s of a namespace without pods: exit code %d, %q, %s", list, code, out, complaints)
		}
		if code, out, complaints := typed(t, n, list, "-q", "-l", "nobody=has-it"); code != 0 || out != "" {
			t.Errorf("%s of a label without pods: exit code %d, %q, %s", list, code, out, complaints)
		}
	}
	if _, out, _ := typed(t, n, "pods", "--no-headers", "--sort-by", "age"); strings.Contains(out, "POD") {
		t.Errorf("--no-headers prints\n%s", out)
	}
}

// TestTheCommandLineRunsCommandsAsAnotherUser: -u, -e and -w of exec, by names that the container's own /etc/passwd
// has.
func TestTheCommandLineRunsCommandsAsAnotherUser(t *testing.T) {
	nodetest.BerthOnly(t, "the command speaks to Berth's own service")
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run()
	script := `id -u; id -g; id -G; echo "$HOME $COLOUR $(pwd)"`
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "0\n0\n0\n/root  /\n"},
		{[]string{"-u", "daemon", "-e", "COLOUR=blue", "-w", "/tmp"}, "1\n1\n1\n/usr/sbin blue /tmp\n"},
		{[]string{"-u", "4711"}, "4711\n0\n0\n/  /\n"},
		{[]string{"-u", "4711:12"}, "4711\n12\n12\n/  /\n"},
		{[]string{"-u", "daemon", "-e", "HOME=/tmp"}, "1\n1\n1\n/tmp  /\n"},
	} {
		args := append(append([]string{"exec"}, test.args...), c.ID, "sh", "-c", script)
		if code, out, complaints := typed(t, n, args...); code != 0 || out != test.want {
			t.Errorf("%q: exit code %d, %q, want %q: %s", test.args, code, out, test.want, complaints)
		}
	}
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-u", "nobody-knows-him"}, 1, `user "nobody-knows-him" is not in /etc/passwd`},
		{[]string{"-u", "4294967295"}, 1, "user"},
		{[]string{"-w", "/does/not/exist"}, 126, "/does/not/exist"},
		{[]string{"-it"}, 2, "not a terminal"},
	} {
		args := append(append([]string{"exec"}, test.args...), c.ID, "true")
		if code, _, complaints := typed(t, n, args...); code != test.code || !strings.Contains(complaints, test.want) {
			t.Errorf("%q: exit code %d, want %d, %q", test.args, code, test.code, complaints)
		}
	}
	// A name alone stands for the caller's value, as for run, and for nothing where the caller has none.
	cmd := commandLine(t, n, "exec", "-e", "COLOUR", "-e", "BERTH_NO_SUCH", c.ID, "sh", "-c",
		`echo "$COLOUR ${BERTH_NO_SUCH-unset}"`)
	cmd.Env = append(os.Environ(), "COLOUR=green")
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "green unset\n" {
		t.Errorf("a variable of the caller: %q, %v", out, err)
	}
}

// TestTheCommandLineSignalsAndWaits: kill without -s ends a container, with -s it sends what is named, and wait prints
// the exit code.
func TestTheCommandLineSignalsAndWaits(t *testing.T) {
	nodetest.BerthOnly(t, "the command speaks to Berth's own service")
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run(nodetest.Sh(`trap "echo got it; exit 7" USR1; echo ready; while :; do sleep 0.1; done`))
	c.WaitLog("ready")
	code, _, complaints := typed(t, n, "kill", "-s", "NOSUCH", c.ID)
	if code == 0 || !strings.Contains(complaints, "NOSUCH") {
		t.Errorf("an unknown signal: exit code %d, %q", code, complaints)
	}
	if code, _, complaints := typed(t, n, "kill", "-s", "usr1", c.ID); code != 0 {
		t.Fatalf("exit code %d, %q", code, complaints)
	}
	if code, out, complaints := typed(t, n, "wait", c.ID); code != 0 || out != "7\n" {
		t.Errorf("exit code %d, %q, %q", code, out, complaints)
	}
	other := p.Run()
	if code, _, complaints := typed(t, n, "kill", other.ID); code != 0 {
		t.Fatalf("exit code %d, %q", code, complaints)
	}
	if code, out, complaints := typed(t, n, "wait", other.ID); code != 0 || out != "137\n" {
		t.Errorf("exit code %d, %q, %q", code, out, complaints)
	}
	if code, _, complaints := typed(t, n, "kill", other.ID); code == 0 || !strings.Contains(complaints, "exited") {
		t.Errorf("one that has ended: exit code %d, %q", code, complaints)
	}
	for _, command := range []string{"kill", "pause", "unpause"} {
		if code, out, complaints := typed(t, n, command, p.ID); code != 1 || out != "" ||
			!strings.Contains(complaints, "the pod has no running container") || !strings.Contains(complaints, ": exited") {
			t.Errorf("%s of a pod that has ended: exit code %d, %q, %q", command, code, out, complaints)
		}
	}
	if _, out, _ := typed(t, n, "pods", "-o", "wide"); !strings.Contains(
		regexp.MustCompile(`.*`+p.ID[:12]+`.*`).FindString(out), "failed") {
		t.Errorf("a pod whose containers have failed is listed as\n%s", out)
	}
}

// TestTheCommandLineShowsSeveralLogsInOrder: the lines of a pod's containers come by their times, each with the name of
// its container, and a pod alone stands for its first container.
func TestTheCommandLineShowsSeveralLogsInOrder(t *testing.T) {
	nodetest.BerthOnly(t, "the command speaks to Berth's own service")
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	// Each word is said, by the other container, once the one before is in the log.
	words := []string{"one", "two", "three", "four", "five", "six"}
	said := t.TempDir()
	say := func(from int) *nodetest.Container {
		var script strings.Builder
		for i := from; i < len(words); i += 2 {
			fmt.Fprintf(&script, "until [ -e /said/%s ]; do sleep 0.02; done; echo %[1]s; ", words[i])
		}
		return p.Run(nodetest.Sh(script.String()), func(c *cri.ContainerConfig) {
			c.Mounts = append(c.Mounts, &cri.Mount{HostPath: said, ContainerPath: "/said"})
		})
	}
	first, second := say(0), say(1)
	for i, word := range words {
		if err := os.WriteFile(filepath.Join(said, word), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		[]*nodetest.Container{first, second}[i%2].WaitLog(word)
	}
	for _, c := range []*nodetest.Container{first, second} {
		if code, _, complaints := typed(t, n, "wait", c.ID); code != 0 {
			t.Fatal(complaints)
		}
	}
	for _, args := range [][]string{{"logs", "--all-containers", p.ID}, {"logs", "-f", first.ID, second.ID}} {
		code, out, complaints := typed(t, n, args...)
		named := regexp.MustCompile(`(?m)` + first.Config.Metadata.Name + ` +\| one$`)
		if code != 0 || strings.Count(out, " | ") != 6 || !named.MatchString(out) {
			t.Errorf("%v: exit code %d, %s\n%s", args, code, complaints, out)
		}
		if args[1] == "-f" {
			continue
		}
		last := -1
		for _, word := range words {
			at := strings.Index(out, "| "+word+"\n")
			if at < last {
				t.Errorf("%q is out of order:\n%s", word, out)
			}
			last = at
		}
	}
	code, out, complaints := typed(t, n, "logs", p.ID)
	if code != 0 || out != "one\nthree\nfive\n" || !strings.HasPrefix(complaints, "Defaulted container") {
		t.Errorf("exit code %d, %q, %q", code, out, complaints)
	}
	if code, out, complaints := typed(t, n, "logs", "-c", second.Config.Metadata.Name, p.ID); out != "two\nfour\nsix\n" {
		t.Errorf("-c: exit code %d, %q, %q", code, out, complaints)
	}
	code, _, complaints = typed(t, n, "logs", "-c", "nobody", p.ID)
	if code == 0 || !strings.Contains(complaints, "Pod ") {
		t.Errorf("-c of no container: exit code %d, %q", code, complaints)
	}
}

// TestTheCommandLinePushesImages: the registry gives the image back under its other name, with the digest that push
// says.
func TestTheCommandLinePushesImages(t *testing.T) {
	nodetest.BerthOnly(t, "the command speaks to Berth's own service")
	n := nodetest.Shared(t)
	nodetest.Pull(t, n, node.Busybox)
	to := node.RegistryHost + "/pushed/busybox:1"
	code, out, complaints := typed(t, n, "push", node.Busybox, to)
	if code != 0 || !strings.HasPrefix(out, "sha256:") {
		t.Fatalf("exit code %d, %q, %q", code, out, complaints)
	}
	digested := node.RegistryHost + "/pushed/busybox@" + strings.TrimSpace(out)
	code, got, complaints := typed(t, n, "pull", "-q", digested)
	_, want, _ := typed(t, n, "pull", "-q", node.Busybox)
	if code != 0 || got != want || got == "" {
		t.Errorf("pulled back it is %q, not %q: exit code %d, %s", got, want, code, complaints)
	}
	if code, _, complaints := typed(t, n, "push", "example.com/never-pulled:1"); code != 1 ||
		!strings.Contains(complaints, "example.com/never-pulled:1") {
		t.Errorf("an image that is not here: exit code %d, %q", code, complaints)
	}
	if code, _, complaints := typed(t, n, "rmi", digested); code != 0 {
		t.Error(complaints)
	}
}

// TestTheCommandLineTakesANameAway from an image that has others, and removes the image with the last one or by its ID.
// Seen to fail where rmi removed the image with all of its names.
func TestTheCommandLineTakesANameAway(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Start(t, node.Options{})
	nodetest.Pull(t, n, node.Busybox)
	status := func(name string) *cri.Image {
		t.Helper()
		resp, err := n.Images.ImageStatus(nodetest.Context(t), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Image
	}
	const other = "registry.example/web:1"
	image := status(node.Busybox).GetId()
	for _, by := range []string{node.Busybox, image} {
		nodetest.Pull(t, n, node.Busybox)
		if code, _, complaints := typed(t, n, "tag", node.Busybox, other); code != 0 {
			t.Fatal(complaints)
		}
		code, out, complaints := typed(t, n, "rmi", other)
		if code != 0 || out != other+"\n" || !strings.Contains(complaints, "only "+other+" is taken away") {
			t.Errorf("exit code %d, %q, %q", code, out, complaints)
		}
		if status(other) != nil || status(node.Busybox) == nil {
			t.Error("the wrong name has gone")
		}
		if by == image {
			if code, _, complaints := typed(t, n, "tag", node.Busybox, other); code != 0 {
				t.Fatal(complaints)
			}
		}
		if code, out, complaints := typed(t, n, "rmi", by); code != 0 || out != by+"\n" || complaints != "" {
			t.Errorf("exit code %d, %q, %q", code, out, complaints)
		}
		if status(other) != nil || status(node.Busybox) != nil {
			t.Errorf("the image is still there after rmi %s", by)
		}
	}
}

// TestTheCommandLineEndsAsAShellDoes: a command that does not exist, and one that cannot be run.
func TestTheCommandLineEndsAsAShellDoes(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	c := nodetest.RunPod(t, n).Run()
	for command, want := range map[string]int{"no-such-command": 127, "/no/such/command": 127, "/etc/passwd": 126} {
		if code, _, complaints := typed(t, n, "exec", c.ID, command); code != want ||
			strings.Count(complaints, "exec in container") != 1 {
			t.Errorf("%s: exit code %d, want %d: %q", command, code, want, complaints)
		}
	}
}

// TestAForwardOutlivesARefusedPort: a connection to a port at which nothing listens says so, and the next one to
// another port goes through. No line of a library's own log is among what the user reads.
func TestAForwardOutlivesARefusedPort(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run(nodetest.Sh("echo page > /tmp/index.html; echo ready; exec httpd -f -p 8080 -h /tmp"))
	c.WaitLog("ready")
	awaitPort(t, c, "8080")
	binaries, err := node.Binaries(nodetest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(nodetest.Context(t), filepath.Join(binaries, "berth"), "--address", n.Address,
		"port-forward", "--bind", "127.0.0.1", p.ID, ":8080", ":9999")
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	at := map[string]string{} // local address by remote port
	lines := bufio.NewScanner(out)
	for len(at) < 2 && lines.Scan() {
		if f := strings.Fields(lines.Text()); len(f) == 5 {
			at[f[4]] = f[2]
		}
	}
	for i := range 2 {
		if _, err := http.Get("http://" + at["9999"] + "/"); err == nil {
			t.Error("a port at which nothing listens answers")
		}
		resp, err := http.Get("http://" + at["8080"] + "/")
		if err != nil {
			t.Fatalf("after %d refused connections: %v", i+1, err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(body) != "page\n" {
			t.Errorf("the pod's page is %q", body)
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("Ctrl-C: %v", err)
	}
	if text := complaints.String(); strings.Count(text, "nothing listens at port 9999 of ") != strings.Count(text, "\n") ||
		text == "" {
		t.Errorf("it complains:\n%s", text)
	}
}

// TestTheCommandLineCopiesFiles: into a container, as its user, and out of it, without a program in the image; and a
// link in the container does not lead to a file of this machine. The path that is resolved is the container's:
// internal/cli/filecopy has the tests of what a hostile tree may try.
func TestTheCommandLineCopiesFiles(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("of this machine"), 0o640); err != nil {
		t.Fatal(err)
	}
	c := nodetest.RunPod(t, n).Run(
		nodetest.Security(func(s *cri.LinuxContainerSecurityContext) { s.RunAsUser = &cri.Int64Value{Value: 4711} }),
		nodetest.Sh("mkdir -p /tmp/d/e; echo inside >/tmp/d/e/f; ln -s "+secret+" /tmp/link; echo ready; exec sleep 600"))
	c.WaitLog("ready")
	if code, _, complaints := typed(t, n, "cp", secret, c.ID+":/tmp/new"); code != 0 {
		t.Fatalf("exit code %d, %s", code, complaints)
	}
	code, out, complaints := typed(t, n, "exec", c.ID, "sh", "-c", "cat /tmp/new; stat -c ' %u %a' /tmp/new")
	if code != 0 || out != "of this machine 4711 640\n" {
		t.Errorf("in the container: exit code %d, %q, %s", code, out, complaints)
	}
	if code, _, complaints := typed(t, n, "cp", c.ID+":/tmp/d", dir); code != 0 {
		t.Errorf("a directory: exit code %d, %s", code, complaints)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "d/e/f")); err != nil || string(got) != "inside\n" {
		t.Errorf("the copy of a directory: %q, %v", got, err)
	}
	// Through standard output and input, as a tar archive.
	get, put := commandLine(t, n, "cp", c.ID+":/tmp/d", "-"), commandLine(t, n, "cp", "-", c.ID+":/var/tmp")
	archive, err := get.Output()
	if err != nil {
		t.Fatalf("an archive out of the container: %v", err)
	}
	put.Stdin = bytes.NewReader(archive)
	if out, err := put.CombinedOutput(); err != nil {
		t.Fatalf("an archive into the container: %v, %s", err, out)
	}
	code, out, complaints = typed(t, n, "exec", c.ID, "sh", "-c", "cat /var/tmp/d/e/f; stat -c %u /var/tmp/d/e/f")
	if code != 0 || out != "inside\n4711\n" {
		t.Errorf("what came out and went in again: exit code %d, %q, %s", code, out, complaints)
	}
	for _, args := range [][]string{{"cp", "-", c.ID + ":/tmp"}, {"cp", c.ID + ":/tmp/d", "-"}} {
		cmd := commandLine(t, n, args...)
		terminal(t, cmd).await(t, "./- for a file of this name")
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 2 {
			t.Errorf("%q at a terminal: %v", args, err)
		}
	}
	code, _, complaints = typed(t, n, "cp", c.ID+":/tmp/link", filepath.Join(dir, "stolen"))
	if _, err := os.Lstat(filepath.Join(dir, "stolen")); code != 1 || err == nil ||
		!strings.Contains(complaints, "no such file or directory") {
		t.Errorf("a link to this machine: exit code %d, %q, %v", code, complaints, err)
	}
	code, _, complaints = typed(t, n, "cp", secret, dir)
	if code != 2 || !strings.Contains(complaints, "in a container") {
		t.Errorf("no container: exit code %d, %q", code, complaints)
	}
	c.Stop(0)
	if code, _, complaints := typed(t, n, "cp", c.ID+":/tmp/d", dir); code != 1 ||
		!strings.Contains(complaints, "not running") {
		t.Errorf("one that has ended: exit code %d, %q", code, complaints)
	}
}
