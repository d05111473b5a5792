package registry

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
)

// hostsFile is the shape of hosts.toml. The library skips a file that does not parse and asks the registry itself, which
// is not what a node's owner meant; so the file is checked first.
type hostsFile struct {
	Server string `toml:"server"`
	hostEntry
	Host map[string]hostEntry `toml:"host"`
}

type hostEntry struct {
	Capabilities []string       `toml:"capabilities"`
	CA           any            `toml:"ca"`
	Client       any            `toml:"client"`
	SkipVerify   *bool          `toml:"skip_verify"`
	Header       map[string]any `toml:"header"`
	OverridePath bool           `toml:"override_path"`
	DialTimeout  string         `toml:"dial_timeout"`
}

// checkHosts refuses a hosts.toml of a registry that does not parse.
func checkHosts(dir, registry string) error {
	at, err := config.HostDirFromRoot(dir)(registry)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("registry %s: %w: %w", registry, err, errdefs.ErrFailedPrecondition)
	}
	file := filepath.Join(at, "hosts.toml")
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil // certificates alone are fine
	}
	if err != nil {
		return fmt.Errorf("registry %s: %w: %w", registry, err, errdefs.ErrFailedPrecondition)
	}
	var parsed hostsFile
	decoder := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields()
	if err := decoder.Decode(&parsed); err != nil {
		var strict *toml.StrictMissingError
		if errors.As(err, &strict) && len(strict.Errors) > 0 {
			err = fmt.Errorf("unknown key %s", strings.Join(strict.Errors[0].Key(), "."))
		}
		return fmt.Errorf("registry %s: %s: %w: %w", registry, file, err, errdefs.ErrFailedPrecondition)
	}
	for _, h := range parsed.Host {
		for _, c := range h.Capabilities {
			switch strings.ToLower(c) {
			case "pull", "resolve", "push", "referrers":
			default:
				return fmt.Errorf("registry %s: %s: unknown capability %q: %w", registry, file, c, errdefs.ErrFailedPrecondition)
			}
		}
	}
	return nil
}
