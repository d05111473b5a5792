package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"berth/test/node"
)

// foreign is added to containerd's package of integration tests.
//
//go:embed testdata/foreign.go
var foreign []byte

// edit is a change of one place in a file of containerd's package.
type edit struct {
	file, old, by string
}

// renamed gives a function of containerd's another name, for foreign has one of that name.
func renamed(file, name string) edit {
	return edit{file, "\nfunc " + name + "(", "\nfunc containerds" + name + "("}
}

// envNRISocket tells containerd's tests where NRI plugins connect.
const envNRISocket = "BERTH_NRI_SOCKET"

// edits make the package one for any runtime of the CRI.
var edits = []edit{
	renamed("main_test.go", "CRIConfig"),
	renamed("main_test.go", "PodSandboxConfig"),
	renamed("main_test.go", "Randomize"),
	renamed("pod_userns_linux_test.go", "supportsRuncIDMap"),
	// Where containerd keeps images: tests ask whether the file system can map IDs.
	{"pod_userns_linux_test.go", `"/var/lib/containerd-test"`, `"/"`},
	// Whether a volume of an image is a snapshot of containerd's is for containerd's snapshotter to say.
	{"image_volume_linux_test.go", "podCtx.imageVolumeDir(), volumeImg", `"", volumeImg`},
	{"image_volume_linux_test.go", "_, err = snSrv.Mounts(ctx, volumeImgTarget)", "_, err = snSrv, error(nil)"},
	{"image_volume_linux_test.go", "_, err := snSrv.Mounts(ctx, volumeImgTarget)", "err := errdefs.ErrNotFound"},
	// The node's.
	{"nri_test.go", "const (\n\tnriTestSocket        = \"/var/run/nri-test.sock\"\n",
		"var nriTestSocket = os.Getenv(\"" + envNRISocket + "\")\n\nconst (\n"},
	// A shell that has just been started may not have read its script yet, and would die of the signal.
	{"container_stop_signal_test.go", "\t\t\trequire.NoError(t, runtimeService.StopContainer(cn, 10))",
		"\t\t\twaitForTraps()\n\t\t\trequire.NoError(t, runtimeService.StopContainer(cn, 10))"},
}

// buildContainerd is the path of containerd's integration tests, built with the set-up of ours. What was built before
// is taken from the cache.
func buildContainerd(ctx context.Context, cache string) (string, error) {
	key := sha256.Sum256(fmt.Appendf(nil, "%s\n%q\n%s", containerdModule.sum, edits, foreign))
	binary := filepath.Join(cache, "containerd-"+hex.EncodeToString(key[:8])+".test")
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	dir, err := containerdModule.download(ctx)
	if err != nil {
		return "", err
	}
	// Go's overlays may not lie over its cache of modules, so the package is built from a copy.
	work, err := os.MkdirTemp("", "berth-containerd-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	if err := copyTree(dir, work); err != nil {
		return "", err
	}
	integration := filepath.Join(work, "integration")
	for _, e := range edits {
		if err := e.apply(integration); err != nil {
			return "", err
		}
	}
	if err := os.WriteFile(filepath.Join(integration, "foreign_socket_test.go"), foreign, 0o644); err != nil {
		return "", err
	}
	fmt.Println("building containerd's integration tests, once: some minutes")
	partial := fmt.Sprintf("%s.%d", binary, os.Getpid())
	defer os.Remove(partial)
	cmd := exec.CommandContext(ctx, "nice", "go", "test", "-c", "-trimpath", "-mod=readonly",
		"-o", partial, "./integration")
	cmd.Dir = work
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build containerd's integration tests: %w\n%s", err, out)
	}
	return binary, os.Rename(partial, binary)
}

// apply makes the change in a directory. The file must have the old text once.
func (e edit) apply(dir string) error {
	path := filepath.Join(dir, e.file)
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if n := bytes.Count(data, []byte(e.old)); n != 1 {
		return fmt.Errorf("%s has %q %d times", path, e.old, n)
	}
	return os.WriteFile(path, bytes.Replace(data, []byte(e.old), []byte(e.by), 1), 0o644)
}

// containerdSuite runs each of containerd's tests in a process of its own, so that one that panics or hangs is one
// failure.
func containerdSuite(ctx context.Context, s settings, n *node.Node) ([]result, error) {
	binary, err := buildContainerd(ctx, s.cache)
	if err != nil {
		return nil, err
	}
	// Volumes of pods with user namespaces lie here: others must be able to pass.
	work, err := os.MkdirTemp("", "berth-suite-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	if err := os.Chmod(work, 0o755); err != nil {
		return nil, err
	}
	list := filepath.Join(work, "images.toml")
	if err := os.WriteFile(list, []byte(containerdImages), 0o644); err != nil {
		return nil, err
	}
	environment := append(os.Environ(), "TMPDIR="+work, envNRISocket+"="+n.NRISocket)
	names, err := listTests(ctx, binary, n.Address)
	if err != nil {
		return nil, err
	}
	var results []result
	for _, name := range names {
		if !s.focused(name) {
			continue
		}
		if why, ok := containerdLeftOut[name]; ok {
			results = append(results, result{name: name, outcome: leftOut, text: why})
			continue
		}
		limit := node.Patience(5 * time.Minute)
		inner, cancel := context.WithTimeout(ctx, limit+30*time.Second)
		cmd := exec.CommandContext(inner, binary, "-test.v", "-test.run", "^"+name+"$", "-test.timeout", limit.String(),
			"-cri-endpoint", n.Address, "-image-list", list, "-containerd-bin", "none")
		cmd.Dir, cmd.Env = work, environment
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		cmd.WaitDelay = 5 * time.Second
		out, err := cmd.CombinedOutput()
		cancel()
		if ctx.Err() != nil {
			return results, ctx.Err()
		}
		results = append(results, s.say(parseGoTest(name, string(out), err))...)
		if err := afterStory(ctx, n, name); err != nil {
			return results, err
		}
	}
	return results, nil
}

// listTests are the names of all tests. The suite connects before it looks at what it is to do.
func listTests(ctx context.Context, binary, address string) ([]string, error) {
	out, err := exec.CommandContext(ctx, binary, "-test.list", ".", "-cri-endpoint", address).Output()
	if err != nil {
		return nil, fmt.Errorf("%s -test.list: %w", binary, err)
	}
	names := strings.Fields(string(out))
	if len(names) == 0 {
		return nil, errors.New("containerd's suite has no test")
	}
	return names, nil
}

var verdict = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): (\S+) \(([0-9.]+s)\)$`)

// parseGoTest reads what `go test -v` says of one test: a result for it where it has no subtests, and else one for each
// of them. A test that says nothing of its end has failed.
func parseGoTest(name, out string, runErr error) []result {
	outcomes := map[string]outcome{"PASS": passed, "FAIL": failed, "SKIP": skipped}
	var all []result
	lines := strings.Split(out, "\n")
	for i, line := range lines {
		m := verdict.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		took, _ := time.ParseDuration(m[3]) // the expression matches durations only
		r := result{name: m[2], outcome: outcomes[m[1]], took: took}
		switch r.outcome {
		case skipped:
			r.text = skipReason(lines[:i])
		case failed:
			r.text = tail(out, 6000)
		}
		all = append(all, r)
	}
	var leaves []result
	ended, failures := false, 0
	for _, r := range all {
		ended = ended || r.name == name
		parent := false
		for _, other := range all {
			parent = parent || strings.HasPrefix(other.name, r.name+"/")
		}
		if !parent {
			leaves = append(leaves, r)
			if r.outcome == failed {
				failures++
			}
		}
	}
	if !ended || runErr != nil && failures == 0 {
		leaves = append(leaves, result{name: name, outcome: failed, text: fmt.Sprintf("%v\n%s", runErr, tail(out, 6000))})
	}
	return leaves
}

// skipReason is the last message before a verdict.
func skipReason(before []string) string {
	for i := len(before) - 1; i >= 0; i-- {
		line := strings.TrimSpace(before[i])
		if strings.HasPrefix(line, "=== ") {
			break
		}
		if _, message, ok := strings.Cut(line, ".go:"); ok {
			if _, message, ok = strings.Cut(message, ": "); ok {
				return message
			}
		}
	}
	return "no reason is given"
}

func tail(text string, most int) string {
	if len(text) > most {
		return "…" + text[len(text)-most:]
	}
	return text
}
