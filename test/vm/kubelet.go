package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"berth/test/vm/wire"
)

// runKubelet runs test/kubelet in the guest, with a kubelet that was built on the host: building one there would take
// hours.
func runKubelet(ctx context.Context, s *session) ([]*result, error) {
	start := time.Now()
	const tests = "./test/kubelet"
	if err := command(ctx, "go", "test", "-C", s.root, "-tags", tags, "-count", "1", "-timeout", "1h", tests,
		"-args", "-prepare"); err != nil {
		return nil, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	shared := filepath.Join(s.tests, "cache", "berth")
	if err := os.MkdirAll(shared, 0o755); err != nil {
		return nil, err
	}
	defer os.RemoveAll(filepath.Dir(shared))
	if err := command(ctx, "cp", "-r", filepath.Join(cache, "berth", "kubelet"), shared); err != nil {
		return nil, err
	}
	fmt.Printf("the kubelet: %v\n", elapsed(start))
	results, err := s.runPackages(ctx, []string{tests}, wire.Command{
		// Go, which is asked for the version of Kubernetes, keeps its own cache.
		Env: []string{"BERTH_KUBELET=1", "XDG_CACHE_HOME=" + filepath.Join(wire.Share, "tests", "cache"),
			"GOCACHE=" + s.gocache},
		Args: []string{"-test.parallel", "3"},
	})
	for _, r := range results {
		if r.ok() && r.passed == 0 {
			r.err = errors.New("no test has run")
		}
	}
	return results, err
}
