package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
)

// CheckHosts says what would fail each pull from a registry that has a directory in dir: a hosts.toml that cannot be
// used, or a certificate. A directory that is not there has nothing wrong in it.
func CheckHosts(ctx context.Context, dir string) error {
	names, err := registries(dir)
	errs := []error{err}
	for _, name := range names {
		errs = append(errs, checkHost(ctx, dir, name))
	}
	return errors.Join(errs...)
}

// registries are the names of a directory's directories.
func registries(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		// What a volume of Kubernetes has beside its files begins with a dot, as no registry does.
		if info, err := os.Stat(dir + "/" + e.Name()); err != nil || !info.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		names = append(names, e.Name())
	}
	return names, err
}

// Withheld is a host that a hosts.toml names, and that does not get the credentials of a pull from the registry.
type Withheld struct {
	Registry string // _default: each that has no directory of its own
	URL      string // of the host: http://mirror.example
	Mirror   bool   // it is not the registry itself, and not what the file puts in its place
}

// withPort is a directory's name for a registry with a port, where a colon is not wanted in a name.
var withPort = regexp.MustCompile(`^(.+)_([0-9]+)_$`)

// WithheldHosts are the hosts in a directory of hosts.toml files that do not get the credentials of a pull, although
// nobody has decided that: the file has neither berth_credentials nor a header Authorization for them. A file that
// cannot be used has none: CheckHosts says what is wrong with it.
func WithheldHosts(dir string) []Withheld {
	names, _ := registries(dir)
	var out []Withheld
	for _, name := range names {
		rules, err := readHosts(dir, name)
		if err != nil {
			continue
		}
		domain := withPort.ReplaceAllString(name, "$1:$2")
		seen := map[string]bool{}
		for _, m := range append(slices.Clone(rules.mirrors), rules.server) {
			rule := m.hostRule
			if !rule.server {
				rule, _ = rules.mirror(m.host)
			}
			h := docker.RegistryHost{Scheme: "https", Host: cmp.Or(m.host, domain)}
			if m.plain {
				h.Scheme = "http"
			}
			w := Withheld{domain, h.Scheme + "://" + h.Host, !rule.server && !sameHost(h, domain)}
			some := credentials{password: "any"}
			if rule.send == "" && !m.header && !seen[w.URL] && some.withheld(domain, h, rule) != "" {
				seen[w.URL] = true
				out = append(out, w)
			}
		}
	}
	slices.SortFunc(out, func(a, b Withheld) int {
		return cmp.Or(strings.Compare(a.Registry, b.Registry), strings.Compare(a.URL, b.URL))
	})
	return out
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
