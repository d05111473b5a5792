package main

import (
	"testing"

	"berth/internal/config"
	"berth/internal/image"
)

func TestANodeThatSetsNoLimitsHasTheStoresOwn(t *testing.T) {
	if got := imageLimits(&config.Default().Image); got != image.DefaultLimits {
		t.Errorf("the configuration's are\n%+v\nthe store's\n%+v", got, image.DefaultLimits)
	}
}
