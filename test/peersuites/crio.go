package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"berth/test/node"
)

// helpers is in place of CRI-O's file of the same name.
//
//go:embed testdata/helpers.bash
var helpers []byte

// crioSuite runs the files of CRI-O's suite, each with bats.
func crioSuite(ctx context.Context, s settings, n *node.Node) ([]result, error) {
	crictl, err := buildCrictl(ctx, s.cache)
	if err != nil {
		return nil, err
	}
	dir, err := prepareCrio(ctx, n)
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.bats"))
	if err != nil {
		return nil, err
	}
	work := filepath.Join(n.Dir, "suite", "tmp")
	if err := os.Mkdir(work, 0o711); err != nil {
		return nil, err
	}
	prefix := n.PodCIDR.Addr().String()
	environment := append(os.Environ(), "TMPDIR="+work, "CRICTL_BINARY="+crictl, "PEER_SOCKET="+n.Socket,
		"PEER_POD_PREFIX="+prefix[:strings.LastIndex(prefix, ".")+1], "CONMON_BINARY=/nonexistent",
		"CONTAINER_DEFAULT_RUNTIME=true",
		"CONTAINER_CGROUP_MANAGER=cgroupfs", "BATS_TEST_TIMEOUT=120", "TERM=dumb")
	var results []result
	for _, file := range files {
		name := filepath.Base(file)
		if why, ok := crioLeftOut[name]; ok {
			if s.focused(name) {
				results = append(results, result{name: name, outcome: leftOut, text: why})
			}
			continue
		}
		args := []string{"--timing", "--formatter", "tap", name}
		if !s.focused(name) {
			names, err := stories(file)
			if err != nil {
				return results, err
			}
			names = slices.DeleteFunc(names, func(story string) bool { return !s.focused(name + ": " + story) })
			if len(names) == 0 {
				continue
			}
			for i, story := range names {
				names[i] = regexp.QuoteMeta(story)
			}
			args = append([]string{"--filter", "^(" + strings.Join(names, "|") + ")$"}, args...)
		}
		cmd := exec.CommandContext(ctx, "bats", args...)
		cmd.Dir, cmd.Env = dir, environment
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		cmd.WaitDelay = 5 * time.Second
		out, err := cmd.Output()
		if ctx.Err() != nil {
			return results, ctx.Err()
		}
		found, parseErr := parseTAP(name, out)
		if parseErr != nil {
			return results, errors.Join(parseErr, err)
		}
		results = append(results, s.say(found)...)
		if err := afterStory(ctx, n, name); err != nil {
			return results, err
		}
	}
	return results, nil
}

var story = regexp.MustCompile(`(?m)^@test "(.*)" \{`)

// stories are the names of the tests of a file.
func stories(file string) (names []string, err error) {
	data, err := os.ReadFile(file)
	for _, m := range story.FindAllSubmatch(data, -1) {
		names = append(names, string(m[1]))
	}
	return names, err
}

// prepareCrio makes a directory of CRI-O's suite with the set-up of ours.
func prepareCrio(ctx context.Context, n *node.Node) (string, error) {
	module, err := crioModule.download(ctx)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(n.Dir, "suite", "test")
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return "", err
	}
	if err := copyTree(filepath.Join(module, "test"), dir); err != nil {
		return "", err
	}
	if err := os.Rename(filepath.Join(dir, "helpers.bash"), filepath.Join(dir, "crio_helpers.bash")); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "helpers.bash"), helpers, 0o644); err != nil {
		return "", err
	}
	if err := mountArtifactsReadonly(filepath.Join(dir, "oci_artifacts.bats")); err != nil {
		return "", err
	}
	// The pods' cgroups belong below the node's own.
	path := filepath.Join(dir, "testdata", "sandbox_config.json")
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	var config map[string]any
	if err := json.Unmarshal(data, &config); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	linux, ok := config["linux"].(map[string]any)
	if !ok {
		return "", fmt.Errorf("%s has no linux", path)
	}
	linux["cgroup_parent"] = n.PodCgroup("pod_123-456")
	if data, err = json.MarshalIndent(config, "", "  "); err != nil {
		return "", err
	}
	return dir, os.WriteFile(path, data, 0o644)
}

var artifactMount = regexp.MustCompile(`image: \{ image: \$\w+ \},`)

// mountArtifactsReadonly adds to the mounts of a file's stories what a kubelet says of each image that is a volume, and
// Berth wants to be said: that it is read-only.
func mountArtifactsReadonly(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !artifactMount.Match(data) {
		return fmt.Errorf("%s mounts no artifacts any more", file)
	}
	return os.WriteFile(file, artifactMount.ReplaceAll(data, []byte("$0 readonly: true,")), 0o644)
}

var tapLine = regexp.MustCompile(`^(ok|not ok) \d+ (.*)$`)
var tapTime = regexp.MustCompile(` in (\d+)ms$`)

// parseTAP reads what bats says of a file: a line for each test, and after a failure what the test printed.
func parseTAP(file string, out []byte) ([]result, error) {
	var results []result
	plan := -1
	scanner := bufio.NewScanner(bytes.NewReader(out))
	scanner.Buffer(nil, 16<<20)
	for scanner.Scan() {
		text := scanner.Text()
		if _, err := fmt.Sscanf(text, "1..%d", &plan); err == nil {
			continue
		}
		m := tapLine.FindStringSubmatch(text)
		if m == nil {
			if last := len(results) - 1; last >= 0 && results[last].outcome == failed {
				results[last].text = tail(results[last].text+text+"\n", 6000)
			}
			continue
		}
		r := result{outcome: passed}
		if m[1] == "not ok" {
			r.outcome = failed
		}
		name, why, isSkipped := strings.Cut(m[2], " # skip ")
		if isSkipped {
			r.outcome, r.text = skipped, why
		}
		if t := tapTime.FindStringSubmatch(name); t != nil {
			r.took, _ = time.ParseDuration(t[1] + "ms") // the expression matches numbers only
			name = strings.TrimSuffix(name, t[0])
		}
		r.name = file + ": " + name
		results = append(results, r)
	}
	if err := scanner.Err(); err != nil {
		return nil, err
	}
	if plan != len(results) || plan == 0 {
		return nil, fmt.Errorf("bats has run %d of %d tests of %s:\n%s", len(results), plan, file, tail(string(out), 4000))
	}
	return results, nil
}

// buildCrictl is the path of crictl, built from the Go module that test/tools is.
func buildCrictl(ctx context.Context, cache string) (string, error) {
	root, err := node.ModuleRoot()
	if err != nil {
		return "", err
	}
	module := filepath.Join(root, "test", "tools")
	const criTools = "sigs.k8s.io/cri-tools"
	version, err := goTool(ctx, module, "list", "-mod=readonly", "-m", "-f", "{{.Version}}", criTools)
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "crictl")
	// Stories ask crictl for its version, and are skipped for one that does not know it.
	_, err = goTool(ctx, module, "build", "-mod=readonly", "-o", path,
		"-ldflags", "-X "+criTools+"/pkg/version.Version="+version, criTools+"/cmd/crictl")
	return path, err
}

func goTool(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", args[0], err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}
