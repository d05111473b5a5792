package lookup

import (
	"slices"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestNamesThatMayHaveBeenMeant(t *testing.T) {
	names := []string{"web", "worker", "database", "database-backup", "a"}
	for typed, want := range map[string][]string{
		"wbe": {"web"}, "Web": {"web"}, "wroker": {"worker"}, "databse": {"database"},
		"data": {"database", "database-backup"}, "b": nil, "nothing": nil, "": nil, "worke": {"worker"}, "web": nil,
	} {
		if got := Near(typed, names); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", typed, got, want)
		}
	}
}

func TestAPodThatDoesNotExistIsToldWithItsLikes(t *testing.T) {
	pods := []*cri.PodSandbox{
		{Id: "1", Metadata: &cri.PodSandboxMetadata{Name: "hello", Namespace: "default"}},
		{Id: "2", Metadata: &cri.PodSandboxMetadata{Name: "other", Namespace: "shop"}},
	}
	for typed, want := range map[string]string{"helo": "Did you mean hello?", "shop/othre": "Did you mean shop/other?"} {
		if _, err := matchPod(pods, typed); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", typed, err)
		}
	}
	if _, err := matchPod(pods, "xyz"); err == nil || strings.Contains(err.Error(), "Did you mean") {
		t.Error(err)
	}
}
