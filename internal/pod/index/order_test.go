package index

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"berth/internal/model"
	"berth/internal/pod/record"
)

// TestAnAttemptIsCreatedAfterTheOnesBefore, wherever the wall clock was set meanwhile: kubelets go by the creation
// time. Other pods, and other containers, have the clock's. Seen to fail with the clock's time for all, and with no
// latest time kept.
func TestAnAttemptIsCreatedAfterTheOnesBefore(t *testing.T) {
	x := New()
	pods := record.NewSandboxes(t.TempDir(), func(string) string { return "" }, slog.New(slog.DiscardHandler))
	containers := record.NewContainers(t.TempDir(), nil, slog.New(slog.DiscardHandler))
	web := model.SandboxMetadata{Name: "web", Namespace: "default", UID: "1"}
	sandboxAt := func(id string, meta model.SandboxMetadata, at time.Time) *Sandbox {
		s := NewSandbox(pods.New(id, record.Sandbox{ID: id, Config: &model.SandboxConfig{Metadata: meta}, CreatedAt: at}))
		x.pods[id] = s
		return s
	}
	containerAt := func(id, name string, s *Sandbox, at time.Time) {
		x.containers[id] = NewContainer(containers.New(id, record.Container{
			ID: id, SandboxID: s.ID(), Config: &model.ContainerConfig{Metadata: model.ContainerMetadata{Name: name}},
			CreatedAt: at,
		}), s)
	}
	// What berthd has loaded is from before the clock was set back by an hour.
	future := time.Now().Add(time.Hour).Round(0)
	first := sandboxAt("a", web, future)
	containerAt("c", "server", first, future.Add(time.Minute))
	x.noteCreated(future)
	x.noteCreated(future.Add(time.Minute))

	attempt := web
	attempt.Attempt = 1
	times := []time.Time{future}
	for i := range 3 {
		at := x.sandboxCreated(attempt)
		sandboxAt(string(rune('d'+i)), attempt, at)
		times = append(times, at)
		attempt.Attempt++
	}
	second := x.pods["d"]
	at := x.containerCreated(second, "server")
	if want := future.Add(time.Minute); !at.After(want) || at.Sub(want) > time.Second {
		t.Errorf("a container's second attempt is created at %v, and the first was at %v", at, want)
	}
	later := func(a, b time.Time) int {
		if a.Before(b) {
			return -1
		}
		return 1
	}
	if !slices.IsSortedFunc(times, later) || times[3].Sub(future) > time.Second {
		t.Errorf("a pod's attempts are created at %v", times)
	}
	other := web
	other.UID = "2"
	for name, at := range map[string]time.Time{
		"another pod": x.sandboxCreated(other), "another container": x.containerCreated(second, "sidecar"),
	} {
		if time.Since(at).Abs() > time.Minute {
			t.Errorf("%s is created at %v", name, at)
		}
	}
}
