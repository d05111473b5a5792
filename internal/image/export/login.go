package export

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"

	"berth/internal/model"
)

// Login asks a registry, host[:port], whether it takes credentials, by the configuration of registries that is in
// force. asked is false where the registry wants none, and so has told nothing about these.
func (e *Exporter) Login(ctx context.Context, registry string, auth *model.Auth) (asked bool, err error) {
	named, err := reference.ParseNormalizedNamed(registry + "/login")
	if err != nil || reference.Domain(named) != registry {
		return false, fmt.Errorf("registry %q is not a host or host:port: %w", registry, errdefs.ErrInvalidArgument)
	}
	repository, err := e.store.Repository(ctx, reference.TagNameOnly(named), auth)
	if err != nil {
		return false, fmt.Errorf("log in to %s: %w", registry, err)
	}
	defer repository.Close()
	if asked, err = repository.Login(ctx); err != nil {
		return asked, fmt.Errorf("log in to %s: %w", registry, err)
	}
	return asked, nil
}
