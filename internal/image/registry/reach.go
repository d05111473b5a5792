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

// Reach asks the hosts of each registry that has a directory among the hosts.toml files, which are its mirrors and the
// registry itself, for the root of its API: through the proxies and with the certificates of a pull, and without
// credentials. A host that asks for credentials answers too. The result is how many hosts were asked; the error joins
// one for each that does not answer.
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
		named, err := reference.ParseNormalizedNamed(domain + "/reach")
		if err != nil || reference.Domain(named) != domain { // such as _default, which stands for all others
			continue
		}
		repository, err := c.Repository(ctx, named, nil)
		if err != nil {
			failures = append(failures, &err)
			continue
		}
		defer repository.Close()
		for _, host := range repository.hosts {
			hosts++
			failure := new(error)
			failures = append(failures, failure)
			asked.Go(func() error {
				*failure = repository.reach(ctx, host)
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

// reach asks one host.
func (r *Repository) reach(ctx context.Context, host docker.RegistryHost) error {
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
	return fmt.Errorf("registry %s: %s", reference.Domain(r.name), r.told(host, r.explain(host, err)))
}
