package runtime

import (
	"encoding/json"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// WriteBundle writes a container's specification into its bundle.
func (d Dir) WriteBundle(id string, spec *specs.Spec) error {
	if err := os.MkdirAll(d.Bundle(id), 0o700); err != nil {
		return err
	}
	b, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(d.Bundle(id), "config.json"), b, 0o600)
}
