package main

import (
	"testing"

	"berth/internal/config"
	"berth/internal/image/ranges"
	"berth/internal/image/source"
)

func TestANodeThatSetsNoLimitsHasTheStoresOwn(t *testing.T) {
	if got := imageLimits(&config.Default().Image); got != source.DefaultLimits {
		t.Errorf("the configuration's are\n%+v\nthe store's\n%+v", got, source.DefaultLimits)
	}
	if got := imageSettings(config.Default()).Ranges; got != ranges.Default {
		t.Errorf("ranges: the configuration's are %+v, the store's %+v", got, ranges.Default)
	}
}
