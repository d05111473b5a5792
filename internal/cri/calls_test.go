package cri

import (
	"maps"
	"testing"
)

type podRequest struct{}

func (podRequest) GetPodSandboxId() string { return "a" }

type containerRequest struct{ podRequest }

func (containerRequest) GetContainerId() string { return "c" }

// TestACallIsLoggedWithTheIDsThatItSpeaksOf, under the keys that IDs have in all other lines.
func TestACallIsLoggedWithTheIDsThatItSpeaksOf(t *testing.T) {
	for _, c := range []struct {
		request any
		want    map[string]string
	}{
		{request: struct{}{}},
		{request: podRequest{}, want: map[string]string{"pod_id": "a"}},
		{request: containerRequest{}, want: map[string]string{"pod_id": "a", "container_id": "c"}},
	} {
		got := map[string]string{}
		for _, attr := range subject(c.request) {
			got[attr.Key] = attr.Value.String()
		}
		if !maps.Equal(got, c.want) {
			t.Errorf("a call with %T is logged with %v and not %v", c.request, got, c.want)
		}
	}
}
