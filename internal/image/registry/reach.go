package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"regexp"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/distribution/reference"
	"golang.org/x/sync/errgroup"
)

// reachTimeout is how long a host may take to answer, and reachAtOnce how many are asked at a time.
const (
	reachTimeout = 5 * time.Second
	reachAtOnce  = 8
)

// portInName is how the name of a registry's directory has a port where a colon cannot be: registry.example_5000_.
var portInName = regexp.MustCompile(`_(\d+)_$`)

// The directory whose file is for all registries without one of their own, and the name of a registry that has none:
// RFC 6761 keeps names that end so from being anybody's.
const (
	everyRegistry = "_default"
	noRegistry    = "default.invalid"
)

// Reach asks the hosts of each registry that has a directory among the hosts.toml files, which are its mirrors and the
// registry itself, for the root of its API: through the proxies and with the certificates of a pull, and without
// credentials. A host that asks for credentials answers too. The result is how many hosts were asked; the error joins
// one for each that does not answer. Of _default, which stands for all other registries, the mirrors and the server are
// asked that it names.
func (c *Client) Reach(ctx context.Context) (hosts int, err error) {
	entries, err := os.ReadDir(c.cfg.HostsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var asked errgroup.Group
	asked.SetLimit(reachAtOnce)
	var failures []*error
	for _, e := range entries {
		domain := portInName.ReplaceAllString(e.Name(), ":$1")
		if domain == everyRegistry {
			domain = noRegistry
		}
		named, err := reference.ParseNormalizedNamed(domain + "/reach")
		if err != nil || reference.Domain(named) != domain { // no pull looks into it
			continue
		}
		repository, err := c.Repository(ctx, named, nil)
		if err != nil {
			failures = append(failures, &err)
			continue
		}
		defer repository.Close()
		for _, host := range repository.hosts {
			if host.Host == noRegistry { // the registry itself, which the file does not name
				continue
			}
			hosts++
			failure := new(error)
			failures = append(failures, failure)
			asked.Go(func() error {
				*failure = repository.reach(ctx, e.Name(), host)
				return nil
			})
		}
	}
	_ = asked.Wait()
	var errs []error
	for _, failure := range failures {
		errs = append(errs, *failure)
	}
	return hosts, errors.Join(errs...)
}

// reach asks one host that the file of a directory names.
func (r *Repository) reach(ctx context.Context, directory string, host docker.RegistryHost) error {
	ctx, cancel := context.WithTimeout(withKind(quiet(ctx), document), reachTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, host.Scheme+"://"+host.Host+host.Path+"/", nil)
	if err == nil {
		var resp *http.Response
		if resp, err = host.Client.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			return resp.Body.Close()
		}
	}
	return fmt.Errorf("registry %s: %s", portInName.ReplaceAllString(directory, ":$1"), r.told(host, r.explain(host, err)))
}
