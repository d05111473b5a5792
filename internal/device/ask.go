package device

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
)

// Annotation says on a sandbox which extended resources the containers of its pod ask for: the CRI has no field for it.
// Its value is what Annotate makes. It holds for a node that has a device manager; another refuses the pod.
const Annotation = "berth.pod/devices"

// Kinds of containers, which decide who may use a device after whom.
const (
	KindInit    = "init"    // it ends before those after it are made, which may have its devices
	KindSidecar = "sidecar" // it lives on beside those after it
)

// Ask lists the devices that one container of a pod asks for.
type Ask struct {
	Container string         `json:"container"`
	Kind      string         `json:"kind,omitempty"`
	Limits    map[string]int `json:"limits"` // how many devices, by resource
}

// maxDevices of one resource that a container may ask for.
const maxDevices = 1 << 20

// Annotate is the value of Annotation for the containers of a pod, in the order in which they are made.
// Empty: none asks.
func Annotate(asks []Ask) (string, error) {
	if len(asks) == 0 {
		return "", nil
	}
	data, err := json.Marshal(asks)
	return string(data), err
}

// Asks reads what a sandbox's annotations say.
func Asks(annotations map[string]string) ([]Ask, error) {
	text, ok := annotations[Annotation]
	if !ok || text == "" {
		return nil, nil
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("annotation %s: %s: %w", Annotation, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
	}
	var asks []Ask
	if err := json.Unmarshal([]byte(text), &asks); err != nil {
		return nil, bad("%v", err)
	}
	for i, ask := range asks {
		switch {
		case ask.Container == "":
			return nil, bad("[%d].container is empty", i)
		case slices.ContainsFunc(asks[:i], func(other Ask) bool { return other.Container == ask.Container }):
			return nil, bad("container %s appears twice", ask.Container)
		case ask.Kind != "" && ask.Kind != KindInit && ask.Kind != KindSidecar:
			return nil, bad("container %s: kind %q is neither %s nor %s", ask.Container, ask.Kind, KindInit, KindSidecar)
		}
		for name, n := range ask.Limits {
			if err := CheckResource(name); err != nil {
				return nil, bad("container %s: %v", ask.Container, err)
			}
			if n < 0 || n > maxDevices {
				return nil, bad("container %s: %s: %d is not in 0..%d", ask.Container, name, n, maxDevices)
			}
		}
	}
	return asks, nil
}
