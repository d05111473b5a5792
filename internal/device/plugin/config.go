package plugin

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/parser"

	"berth/internal/cdi"
	"berth/internal/device"
	"berth/internal/tomlfile"
)

// DefaultPath is the file that says what to offer.
const DefaultPath = "/etc/berth/device-plugin.toml"

//go:embed default.toml
var defaultFile []byte

// DefaultFile is a file with every key, its default and what it does, that offers nothing.
func DefaultFile() []byte { return bytes.Clone(defaultFile) }

// Config says what to offer, and to whom.
type Config struct {
	Dir         string     `toml:"plugin_dir"`
	CDISpecDirs []string   `toml:"cdi_spec_dirs"`
	Resources   []Resource `toml:"resource"`
}

// Resource is one extended resource. One of Nodes and Groups, or CDI, says which devices it has.
type Resource struct {
	Name        string     `toml:"name"`
	Nodes       []string   `toml:"nodes"`
	Groups      [][]string `toml:"groups"`
	CDI         string     `toml:"cdi"`
	Permissions string     `toml:"permissions"`
	Share       int        `toml:"share"`
}

// maxShare is how many containers one device may be offered to.
const maxShare = 10000

// Load reads a file. An error names it, and the line or the resource.
func Load(path string) (*Config, error) {
	c := &Config{Dir: "/var/lib/kubelet/device-plugins", CDISpecDirs: cdi.DefaultDirs}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("what to offer: %w", err)
	}
	if err := tomlfile.Decode(data, c); err != nil {
		return nil, tomlfile.Located(err, path, nil)
	}
	for i := range c.Resources {
		r := &c.Resources[i]
		if r.Permissions == "" {
			r.Permissions = "rw"
		}
		if r.Share == 0 {
			r.Share = 1
		}
	}
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

func (c *Config) validate() error {
	if !filepath.IsAbs(c.Dir) {
		return fmt.Errorf("plugin_dir: %q is not an absolute path", c.Dir)
	}
	for _, dir := range c.CDISpecDirs {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("cdi_spec_dirs: %q is not an absolute path", dir)
		}
	}
	if len(c.Resources) == 0 {
		return errors.New("no [[resource]]: there is nothing to offer")
	}
	seen := map[string]bool{}
	for i := range c.Resources {
		r := &c.Resources[i]
		if err := r.validate(); err != nil {
			return fmt.Errorf("resource %d (%s): %w", i+1, r.Name, err)
		}
		if seen[r.Name] {
			return fmt.Errorf("resource %d (%s): it appears twice", i+1, r.Name)
		}
		seen[r.Name] = true
	}
	return nil
}

func (r *Resource) validate() error {
	if err := device.CheckResource(r.Name); err != nil {
		return fmt.Errorf("name: %w", err)
	}
	switch {
	case len(r.Nodes) == 0 && len(r.Groups) == 0 && r.CDI == "":
		return errors.New("none of nodes, groups and cdi says what it has")
	case r.CDI != "" && len(r.Nodes)+len(r.Groups) > 0:
		return errors.New("cdi excludes nodes and groups")
	case strings.Trim(r.Permissions, "rwm") != "":
		return fmt.Errorf("permissions: %q is not made of r, w and m", r.Permissions)
	case r.Share < 1 || r.Share > maxShare:
		return fmt.Errorf("share: %d is not in 1..%d", r.Share, maxShare)
	}
	if r.CDI != "" {
		vendor, class := parser.ParseQualifier(r.CDI)
		if err := errors.Join(parser.ValidateVendorName(vendor), parser.ValidateClassName(class)); err != nil {
			return fmt.Errorf("cdi: %q is no kind such as vendor.com/class: %w", r.CDI, err)
		}
	}
	for _, group := range append(r.Groups[:len(r.Groups):len(r.Groups)], r.Nodes) {
		for _, pattern := range group {
			if !filepath.IsAbs(pattern) || filepath.Clean(pattern) != pattern {
				return fmt.Errorf("%q is not an absolute path in its shortest form", pattern)
			}
			if _, err := filepath.Match(pattern, "/"); err != nil {
				return fmt.Errorf("pattern %q: %w", pattern, err)
			}
		}
	}
	for i, group := range r.Groups {
		if len(group) == 0 {
			return fmt.Errorf("groups[%d] is empty", i)
		}
	}
	return nil
}
