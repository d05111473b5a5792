package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"berth/internal/config"
	"berth/internal/image/ranges"
	"berth/internal/image/source"
	"berth/internal/ocispec"
)

func TestANodeThatSetsNoLimitsHasTheStoresOwn(t *testing.T) {
	if got := imageLimits(&config.Default().Image); got != source.DefaultLimits {
		t.Errorf("the configuration's are\n%+v\nthe store's\n%+v", got, source.DefaultLimits)
	}
	if got := imageSettings(config.Default()).Ranges; got != ranges.Default {
		t.Errorf("ranges: the configuration's are %+v, the store's %+v", got, ranges.Default)
	}
}

// TestAHandlersCapabilitiesAreThoseOfItsConfiguration: no list is the default, and "none" is a list without names.
func TestAHandlersCapabilitiesAreThoseOfItsConfiguration(t *testing.T) {
	for _, c := range []struct{ written, want []string }{
		{nil, nil}, {[]string{"none"}, []string{}}, {[]string{"chown", "CAP_KILL"}, []string{"CAP_CHOWN", "CAP_KILL"}},
	} {
		cfg := config.Default()
		cfg.Runtimes["berth"] = config.Runtime{Type: config.RuntimeBuiltin, Capabilities: c.written}
		h, err := commonHandler(cfg, "berth", ocispec.Handler{})
		if err != nil {
			t.Fatal(err)
		}
		if got := h.Spec.Capabilities; !slices.Equal(got, c.want) || (got == nil) != (c.want == nil) {
			t.Errorf("capabilities = %q: %q, want %q", c.written, got, c.want)
		}
	}
}

// TestAHandlerCanDoNoMoreThanTheKernel: an OCI runtime says what it was built with, on whatever kernel it runs.
func TestAHandlerCanDoNoMoreThanTheKernel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "runtime")
	script := "#!/bin/sh\n" +
		`echo '{"mountOptions":["rro"],"linux":{"mountExtensions":{"idmap":{"enabled":true}}}}'` + "\n"
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	cfg := config.Default()
	cfg.Runtimes["oci"] = config.Runtime{Type: config.RuntimeOCI, Path: path}
	for _, can := range []bool{true, false} {
		known, err := handlers(cfg, &ocispec.Host{RecursiveReadonly: can, IDMappedMounts: can}, nil, "")
		if err != nil {
			t.Fatal(err)
		}
		for name, h := range known {
			if h.RecursiveReadOnly != can || h.UserNamespaces != can {
				t.Errorf("kernel %v, handler %s: recursive read-only mounts %v, user namespaces %v", can, name,
					h.RecursiveReadOnly, h.UserNamespaces)
			}
		}
	}
}
