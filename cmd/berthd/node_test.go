package main

import (
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
