package pod

import (
	"slices"
	"testing"
	"time"

	"berth/internal/model"
)

// TestAnAttemptIsCreatedAfterTheOnesBefore, wherever the wall clock was set meanwhile: kubelets go by the creation time. Other pods, and
// other containers, have the clock's. Seen to fail with the clock's time for all, and with no latest time kept.
func TestAnAttemptIsCreatedAfterTheOnesBefore(t *testing.T) {
	m := &Manager{pod: map[string]*sandbox{}, ctr: map[string]*container{}}
	web := model.SandboxMetadata{Name: "web", Namespace: "default", UID: "1"}
	sandboxAt := func(id string, meta model.SandboxMetadata, at time.Time) *sandbox {
		s := m.newSandbox(id)
		s.rec = SandboxRecord{ID: id, Config: &model.SandboxConfig{Metadata: meta}, CreatedAt: at}
		s.publish()
		m.pod[id] = s
		return s
	}
	containerAt := func(id, name string, s *sandbox, at time.Time) {
		c := newContainer(id, s)
		c.rec = ContainerRecord{
			ID: id, SandboxID: s.id, Config: &model.ContainerConfig{Metadata: model.ContainerMetadata{Name: name}}, CreatedAt: at,
		}
		c.publish()
		m.ctr[id] = c
	}
	// What berthd has loaded is from before the clock was set back by an hour.
	future := time.Now().Add(time.Hour).Round(0)
	first := sandboxAt("a", web, future)
	containerAt("c", "server", first, future.Add(time.Minute))
	m.noteCreated(future)
	m.noteCreated(future.Add(time.Minute))

	attempt := web
	attempt.Attempt = 1
	times := []time.Time{future}
	for i := range 3 {
		at := m.sandboxCreated(attempt)
		sandboxAt(string(rune('d'+i)), attempt, at)
		times = append(times, at)
		attempt.Attempt++
	}
	second := m.pod["d"]
	at := m.containerCreated(second, "server")
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
		"another pod": m.sandboxCreated(other), "another container": m.containerCreated(second, "sidecar"),
	} {
		if time.Since(at).Abs() > time.Minute {
			t.Errorf("%s is created at %v", name, at)
		}
	}
}
