package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"berth/test/vm/wire"
)

// testPackage is a package of this module that has tests.
type testPackage struct {
	ImportPath   string
	Dir          string
	TestGoFiles  []string
	XTestGoFiles []string
}

// testPackages are those that match the patterns, without those that have no tests.
func testPackages(ctx context.Context, root string, patterns []string) ([]testPackage, error) {
	cmd := exec.CommandContext(ctx,
		"go", append([]string{"list", "-tags", tags, "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles"},
			patterns...)...)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.Bytes())
	}
	var packages []testPackage
	for decoder := json.NewDecoder(bytes.NewReader(out)); decoder.More(); {
		var p testPackage
		if err := decoder.Decode(&p); err != nil {
			return nil, err
		}
		if len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 {
			packages = append(packages, p)
		}
	}
	return packages, nil
}

// result is what came of a package or of critest.
type result struct {
	name                    string
	passed, failed, skipped int
	took                    time.Duration
	err                     error // beside failed tests
	log                     string
}

func (r *result) ok() bool { return r.failed == 0 && r.err == nil }

func (r *result) String() string {
	word := "ok  "
	if !r.ok() {
		word = "FAIL"
	}
	s := fmt.Sprintf("%s %-34s %4d passed %3d failed %3d skipped  %v", word, r.name, r.passed, r.failed, r.skipped,
		r.took.Round(100*time.Millisecond))
	if r.err != nil {
		s += "\n     " + r.err.Error()
	}
	if !r.ok() {
		s += "\n     " + r.log
	}
	return s
}

var outcome = regexp.MustCompile(`(?m)^--- (PASS|FAIL|SKIP): `)

// runTests compiles a package's tests, runs them in the guest, in the package's directory, and keeps what they print.
func (s *session) runTests(ctx context.Context, p testPackage, with wire.Command) *result {
	name := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, "berth"), "/")
	if name == "" {
		name = "."
	}
	r := &result{name: name, log: filepath.Join(s.results, strings.ReplaceAll(name, "/", "_")+".log")}
	file := strings.ReplaceAll(name, "/", "_") + ".test"
	binary := filepath.Join(s.tests, file)
	compile := exec.CommandContext(ctx, "go", "test", "-c", "-tags", tags, "-ldflags", "-s -w", "-o", binary, p.ImportPath)
	compile.Dir = s.root
	compile.Env = append(os.Environ(), s.guest.environment()...)
	if out, err := compile.CombinedOutput(); err != nil {
		r.err = fmt.Errorf("go test -c: %w\n%s", err, out)
		return r
	}
	defer os.Remove(binary)
	args := []string{filepath.Join(wire.Share, "tests", file), "-test.v", "-test.timeout", s.limit.String()}
	if s.run != "" {
		args = append(args, "-test.run", s.run)
	}
	if s.skip != "" {
		args = append(args, "-test.skip", s.skip)
	}
	start := time.Now()
	out, code, err := s.logged(ctx, wire.Command{
		Args: append(args, with.Args...), Env: with.Env, Dir: p.Dir, Limit: s.limit + time.Minute,
	}, r.log)
	r.took = time.Since(start)
	for _, m := range outcome.FindAllSubmatch(out, -1) {
		switch string(m[1]) {
		case "PASS":
			r.passed++
		case "FAIL":
			r.failed++
		case "SKIP":
			r.skipped++
		}
	}
	r.err = err
	if err == nil && code != 0 && r.failed == 0 {
		r.err = fmt.Errorf("the tests ended with %d: %s", code, bytes.TrimSpace(out[max(0, len(out)-1500):]))
	}
	return r
}

// logged runs a command in the guest and keeps its output in a file.
func (s *session) logged(ctx context.Context, c wire.Command, file string) (out []byte, code int, err error) {
	log, err := os.Create(file)
	if err != nil {
		return nil, -1, err
	}
	defer log.Close()
	var kept bytes.Buffer
	writers := []io.Writer{log, &kept}
	if s.verbose {
		writers = append(writers, os.Stdout)
	}
	c.Env = append(s.environment(), c.Env...)
	code, err = s.machine.run(ctx, c, io.MultiWriter(writers...))
	return kept.Bytes(), code, err
}
