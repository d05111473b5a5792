// Package credentials finds the credentials for a pull or a push: those that flags of the command give, or those in the
// user's config.json and in the credential helpers that it names.
package credentials

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/distribution/reference"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/dockerauth"
)

// File is a config.json of credentials.
type File struct {
	file *dockerauth.File // nil: there is none
}

// DefaultPath is the default path of the file: $REGISTRY_AUTH_FILE, else
// $DOCKER_CONFIG/config.json, else ~/.docker/config.json.
func DefaultPath() string {
	if path := os.Getenv("REGISTRY_AUTH_FILE"); path != "" {
		return path
	}
	dir := os.Getenv("DOCKER_CONFIG")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		dir = filepath.Join(home, ".docker")
	}
	return filepath.Join(dir, "config.json")
}

// Open reads a file. One at the default path need not exist.
func Open(path string) (*File, error) {
	named := path != ""
	if !named {
		if path = DefaultPath(); path == "" {
			return &File{}, nil
		}
	}
	file, err := dockerauth.Read(path)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return &File{}, nil
	}
	if err != nil {
		return nil, err
	}
	return &File{file}, nil
}

// Find returns the credentials for an image's registry; nil where there are none.
func (f *File) Find(ctx context.Context, image string) (*cri.AuthConfig, error) {
	named, err := reference.ParseDockerRef(image)
	if err != nil {
		return nil, fmt.Errorf("image %q: %w", image, err)
	}
	if f.file == nil {
		return nil, nil
	}
	auth, err := f.file.Find(ctx, named)
	if auth == nil || err != nil {
		return nil, err
	}
	return &cri.AuthConfig{
		Username: auth.Username, Password: auth.Password, Auth: auth.Auth,
		IdentityToken: auth.IdentityToken, RegistryToken: auth.RegistryToken,
	}, nil
}
