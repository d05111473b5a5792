package main

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"berth/test/vm/wire"
)

// runNodeConformance runs test/nodeconformance in the guest, with programs and images that were built on the host. The
// guest has swap, and lets the suite use its D-Bus: specs of swap and of graceful shutdown need them.
func runNodeConformance(ctx context.Context, s *session) ([]*result, error) {
	start := time.Now()
	program := filepath.Join(s.tests, "nodeconformance")
	if err := command(ctx, "go", "build", "-C", s.root, "-tags", tags, "-buildvcs=false", "-o", program,
		"./test/nodeconformance"); err != nil {
		return nil, err
	}
	if err := command(ctx, program, "-prepare", "-cache", s.conformanceCache()); err != nil {
		return nil, err
	}
	env, remove, err := s.shareKubernetes(ctx)
	if err != nil {
		return nil, err
	}
	defer remove()
	// The images are those of this program and these packages. The guest writes results beside them.
	const name = "node-conformance"
	cache := filepath.Join(s.tests, name)
	if err := command(ctx, "mkdir", cache); err != nil {
		return nil, err
	}
	for _, dir := range []string{"node-images", "packages"} {
		if err := command(ctx, "cp", "-r", filepath.Join(s.conformanceCache(), dir), cache); err != nil {
			return nil, err
		}
	}
	fmt.Printf("Kubernetes' suite of a node and its images: %v\n", elapsed(start))
	tests := filepath.Join(wire.Share, "tests")
	script := fmt.Sprintf("fallocate -l 1G /swap && chmod 600 /swap && mkswap -q /swap && swapon /swap && "+
		"%[1]s/nodeconformance -cache %[1]s/%[2]s -system-bus -limit %[3]v -procs 6 %[4]s",
		tests, name, s.limit, s.nodeFlags)
	r := &result{name: name, log: filepath.Join(s.results, name+".log")}
	start = time.Now()
	out, code, err := s.logged(ctx, wire.Command{Args: []string{"sh", "-c", script}, Env: env, Dir: s.root,
		Limit: s.limit + 15*time.Minute}, r.log)
	r.took, r.err = time.Since(start), err
	if err == nil && code != 0 {
		r.err = fmt.Errorf("test/nodeconformance ended with %d", code)
	}
	r.countSpecs(out)
	fmt.Println(r)
	kept := filepath.Join(s.results, name)
	err = command(ctx, "sh", "-ec", `rm -rf "$2"; ! [ -d "$1" ] || cp -r "$1" "$2"`, "sh",
		filepath.Join(cache, "results", "node-berth"), kept)
	return []*result{r}, err
}

// specCounts is the line that test/conformance/ginkgo sums a run up with.
var specCounts = regexp.MustCompile(
	`(?m)^berth, .*: (\d+) passed, (\d+) failed \((\d+) of them expected\), (\d+) skipped`)

// countSpecs reads the counts from the output of test/nodeconformance. Specs that were expected to fail, and did, are
// not among the failed ones.
func (r *result) countSpecs(output []byte) {
	m := specCounts.FindSubmatch(output)
	if m == nil {
		return
	}
	count := func(group int) int {
		n, _ := strconv.Atoi(string(m[group])) // digits
		return n
	}
	r.passed, r.failed, r.skipped = count(1), count(2)-count(3), count(4)
}
