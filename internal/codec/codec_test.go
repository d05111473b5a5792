package codec_test

import (
	"encoding/json"
	"testing"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/codec"
)

type outer struct {
	Inner []inner        `json:"inner,omitempty"`
	More  map[string]any `json:"more"`
}

type inner struct {
	Own  *outer `json:"own,omitempty"`
	Text string
}

// TestATypeThatWasLookedAtIsEncodedWithoutAllocatingForIt counts what the first encoding of a type allocates. Seen to
// fail where JSON and Messages do nothing: some hundred allocations each.
func TestATypeThatWasLookedAtIsEncodedWithoutAllocatingForIt(t *testing.T) {
	codec.JSON(outer{})
	codec.Messages(&cri.CreateContainerRequest{})
	first := func(work func()) float64 {
		counted := false // AllocsPerRun calls its function once before it counts
		return testing.AllocsPerRun(1, func() {
			if counted {
				work()
			}
			counted = true
		})
	}
	if n := first(func() { _, _ = json.Marshal(outer{Inner: []inner{{}}}) }); n > 20 {
		t.Errorf("JSON: %v allocations", n)
	}
	in := &cri.CreateContainerRequest{Config: &cri.ContainerConfig{Linux: &cri.LinuxContainerConfig{
		SecurityContext: &cri.LinuxContainerSecurityContext{Seccomp: &cri.SecurityProfile{}}}}}
	if n := first(func() {
		b, _ := proto.Marshal(in)
		_ = proto.Unmarshal(b, &cri.CreateContainerRequest{})
	}); n > 20 {
		t.Errorf("protobuf: %v allocations", n)
	}
}
