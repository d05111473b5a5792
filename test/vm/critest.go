package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"berth/test/vm/wire"
)

// runCritest runs test/conformance in the guest, with tools and images that it has built on the host.
func runCritest(ctx context.Context, s *session) ([]*result, error) {
	start := time.Now()
	program := filepath.Join(s.tests, "conformance")
	cache := filepath.Join(s.tests, "conformance-cache")
	if err := command(ctx, "go", "build", "-C", s.root, "-tags", tags, "-buildvcs=false", "-o", program,
		"./test/conformance"); err != nil {
		return nil, err
	}
	if err := command(ctx, program, "-prepare", "-cache", s.conformanceCache()); err != nil {
		return nil, err
	}
	// The guest writes results beside them.
	if err := command(ctx, "cp", "-r", s.conformanceCache(), cache); err != nil {
		return nil, err
	}
	fmt.Printf("critest and its images: %v\n", elapsed(start))
	guest := filepath.Join(wire.Share, "tests")
	script := fmt.Sprintf("cp -r %[1]s/conformance-cache /var/lib/vm/conformance && "+
		// Without Go, what the host has built is used.
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin %[1]s/conformance -cache "+
		"/var/lib/vm/conformance -limit %[2]v %[3]s; "+
		"code=$?; grep -h . /var/lib/vm/conformance/results/*.daemon.log | grep -v level=DEBUG | tail -n 200 >&2; exit $code",
		guest, s.limit, s.critest)
	r := &result{name: "critest", log: filepath.Join(s.results, "critest.log")}
	start = time.Now()
	out, code, err := s.logged(ctx, wire.Command{Args: []string{"sh", "-c", script}, Dir: s.root,
		Limit: 3*s.limit + time.Minute}, r.log)
	r.took, r.err = time.Since(start), err
	if err == nil && code != 0 {
		r.err = fmt.Errorf("test/conformance ended with %d", code)
	}
	for _, line := range strings.Split(string(out), "\n") {
		if strings.Contains(line, " passed") {
			fmt.Println(line)
		}
	}
	fmt.Println(r)
	return []*result{r}, os.RemoveAll(cache)
}
