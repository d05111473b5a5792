package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"berth/test/kubernetes"
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
	env, remove, err := s.shareKubernetes(ctx)
	if err != nil {
		return nil, err
	}
	defer remove()
	fmt.Printf("the kubelet: %v\n", elapsed(start))
	results, err := s.runPackages(ctx, []string{tests}, wire.Command{
		Env: append(env, "BERTH_KUBELET=1"), Args: []string{"-test.parallel", "3"},
	})
	for _, r := range results {
		if r.ok() && r.passed == 0 {
			r.err = errors.New("no test has run")
		}
	}
	return results, err
}

// runWithPrograms is runPackages, with the programs for the tests of gVisor, of shims and of remote snapshotters.
func (s *session) runWithPrograms(ctx context.Context, patterns []string) ([]*result, error) {
	env, remove, err := s.sharePrograms(ctx, kubernetes.Runsc, kubernetes.RunscShim, kubernetes.Runc,
		kubernetes.ContainerdShim, kubernetes.Stargz)
	if err != nil {
		return nil, err
	}
	defer remove()
	return s.runPackages(ctx, patterns, wire.Command{Env: env})
}

// sharePrograms builds programs on the host, where gVisor's runsc takes a minute and not an hour, and copies them to
// where the guest finds them with the variables env. remove removes the copies.
func (s *session) sharePrograms(ctx context.Context, programs ...kubernetes.Program) (
	env []string, remove func(), err error) {
	shared := filepath.Join(s.tests, "cache")
	remove = func() { os.RemoveAll(shared) }
	for _, program := range programs {
		built, err := program.Build(ctx)
		var name, target string
		if err == nil {
			name, err = filepath.Rel(filepath.Dir(filepath.Dir(built)), built)
		}
		if err == nil {
			target = filepath.Join(shared, "berth", "kubelet", name)
			err = os.MkdirAll(filepath.Dir(target), 0o755)
		}
		if err == nil {
			err = command(ctx, "cp", built, target)
		}
		if err != nil {
			remove()
			return nil, nil, err
		}
	}
	return s.sharedCache(), remove, nil
}

// sharedCache are the variables with which the guest finds programs that were built on the host. Go keeps its own
// cache.
func (s *session) sharedCache() []string {
	return []string{"XDG_CACHE_HOME=" + filepath.Join(wire.Share, "tests", "cache"), "GOCACHE=" + s.gocache}
}

// shareKubernetes copies the programs of Kubernetes that the user's cache has to where the guest finds them with the
// variables env. remove removes the copy.
func (s *session) shareKubernetes(ctx context.Context) (env []string, remove func(), err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, nil, err
	}
	shared := filepath.Join(s.tests, "cache")
	remove = func() { os.RemoveAll(shared) }
	if err := os.MkdirAll(filepath.Join(shared, "berth"), 0o755); err != nil {
		return nil, nil, err
	}
	err = command(ctx, "cp", "-r", filepath.Join(cache, "berth", "kubelet"), filepath.Join(shared, "berth"))
	if err != nil {
		remove()
		return nil, nil, err
	}
	return s.sharedCache(), remove, nil
}
