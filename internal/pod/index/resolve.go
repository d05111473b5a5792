package index

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"berth/internal/model"
)

// sandboxName returns the name that has to be unique among sandboxes. Its parts are separated by NUL, which no name
// contains. Underscores would not do: a_b in c and a in b_c would be the same.
func sandboxName(m model.SandboxMetadata) string {
	return fmt.Sprintf("%s\x00%s\x00%s\x00%d", m.Name, m.Namespace, m.UID, m.Attempt)
}

// containerName returns the name that has to be unique among containers.
func containerName(sandboxID string, m model.ContainerMetadata) string {
	return fmt.Sprintf("%s\x00%s\x00%d", sandboxID, m.Name, m.Attempt)
}

// resolve finds the object of an ID or of a prefix that only one has.
func resolve[T any](kind string, objects map[string]T, id string) (found T, err error) {
	if id == "" {
		return found, fmt.Errorf("%s ID is empty: %w", kind, errdefs.ErrInvalidArgument)
	}
	if o, ok := objects[id]; ok {
		return o, nil
	}
	n := 0
	if len(id) < 64 {
		for full, o := range objects {
			if strings.HasPrefix(full, id) {
				found = o
				n++
			}
		}
	}
	switch n {
	case 1:
		return found, nil
	case 0:
		return found, fmt.Errorf("%s %q: %w", kind, id, errdefs.ErrNotFound)
	}
	var zero T
	return zero, fmt.Errorf("%s ID %q fits %d: %w", kind, id, n, errdefs.ErrInvalidArgument)
}
