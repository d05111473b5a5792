package request

import (
	"errors"
	"fmt"
	"testing"

	"berth/internal/model"
)

func TestAFieldHasTheNameThatTheAPIHasForIt(t *testing.T) {
	names := Names{
		model.FieldContainerMounts: "config.mounts",
		model.FieldContainerImage:  "config.image.image",
	}
	for field, want := range map[model.Field]string{
		"container.mounts":          "config.mounts",
		"container.mounts[2]":       "config.mounts[2]",
		"container.mounts[2].image": "config.mounts[2].image",
		"container.mountsOfOthers":  "container.mountsOfOthers",
		"container.image.image":     "config.image.image",
		"sandbox.dns":               "sandbox.dns",
	} {
		err := fmt.Errorf("create container web: %w", field.Wrong(errors.New("it is wrong")))
		if got := names.Text(err.Error(), err); got != "create container web: "+want+": it is wrong" {
			t.Errorf("%s: %s", field, got)
		}
	}
	other := errors.New("container.mounts: said by somebody else")
	if got := names.Text(other.Error(), other); got != other.Error() {
		t.Errorf("an error that is of no field: %s", got)
	}
}
