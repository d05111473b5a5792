// Package credentials finds what to authenticate a pull with: what was said on the command line, or an entry of a
// config.json as `docker login` and `podman login` write it. Programs that such a file names (credential helpers)
// are not run.
package credentials

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/distribution/reference"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// File is a config.json of credentials.
type File struct {
	auths map[string]entry
}

type entry struct {
	Auth          string `json:"auth"`
	Username      string `json:"username"`
	Password      string `json:"password"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
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
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return &File{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	var content struct {
		Auths map[string]entry `json:"auths"`
	}
	if json.Unmarshal(data, &content) != nil { // its error may quote the file
		return nil, fmt.Errorf("credentials: %s is no config.json of docker's kind", path)
	}
	return &File{auths: content.Auths}, nil
}

// Find returns the credentials for an image's registry; nil where there are none.
func (f *File) Find(image string) (*cri.AuthConfig, error) {
	named, err := reference.ParseDockerRef(image)
	if err != nil {
		return nil, fmt.Errorf("image %q: %w", image, err)
	}
	domain := reference.Domain(named)
	for key, entry := range f.auths {
		if registry(key) != domain {
			continue
		}
		if entry.Auth == "" && entry.Username == "" && entry.IdentityToken == "" && entry.RegistryToken == "" {
			continue // kept by a helper
		}
		return &cri.AuthConfig{
			Username: entry.Username, Password: entry.Password, Auth: entry.Auth,
			IdentityToken: entry.IdentityToken, RegistryToken: entry.RegistryToken,
		}, nil
	}
	return nil, nil
}

// registry is the host that a key of the file speaks of.
func registry(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	host, _, _ := strings.Cut(key, "/")
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		return "docker.io"
	}
	return host
}
