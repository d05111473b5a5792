package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker/config"
)

// CheckHosts says what would fail each pull from a registry that has a directory in dir: a hosts.toml that cannot be
// used, or a certificate. A directory that is not there has nothing wrong in it.
func CheckHosts(ctx context.Context, dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		// What a volume of Kubernetes has beside its files begins with a dot, as no registry does.
		if info, err := os.Stat(dir + "/" + e.Name()); err != nil || !info.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		errs = append(errs, checkHost(ctx, dir, e.Name()))
	}
	return errors.Join(errs...)
}

func checkHost(ctx context.Context, dir, name string) error {
	rules, err := readHosts(dir, name)
	if err != nil {
		return err
	}
	options := config.HostOptions{HostDir: config.HostDirFromRoot(dir)}
	hosts, err := config.ConfigureHosts(quiet(ctx), options)(name)
	if err != nil {
		return fmt.Errorf("registry %s: configuration in %s: %w", name, dir, err)
	}
	_, err = rules.of(hosts)
	return err
}
