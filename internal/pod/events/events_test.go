package events

import (
	"fmt"
	"log/slog"
	"testing"

	"berth/internal/model"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
)

// TestAPodIsNotForgottenForAnOldAttempt: a kubelet forgets the pod that a deletion names, so that none is named while
// another sandbox of it lives. Seen to fail with the sandbox named in each event.
func TestAPodIsNotForgottenForAnOldAttempt(t *testing.T) {
	x := index.New()
	table := record.NewSandboxes(t.TempDir(), func(string) string { return "" }, slog.New(slog.DiscardHandler))
	var attempts []*index.Sandbox
	for i := range uint32(2) {
		id := fmt.Sprint(i)
		meta := model.SandboxMetadata{Name: "web", UID: "1", Attempt: i}
		s := index.NewSandbox(table.New(id, record.Sandbox{ID: id, Config: &model.SandboxConfig{Metadata: meta}}))
		x.AdoptSandbox(s)
		attempts = append(attempts, s)
	}
	feed := New(x)
	ch := feed.Follow(t.Context())
	for i, named := range []bool{false, true} {
		x.ForgetSandbox(attempts[i])
		feed.Tell(attempts[i], attempts[i].ID(), model.EventDeleted)
		if e := <-ch; e.SandboxID != attempts[i].ID() || (e.Sandbox != nil) != named {
			t.Errorf("the deletion of attempt %d is told as %+v", i, e)
		}
	}
}

// TestAnEventNamesNoContainerThatIsBeingMade: lists do not have it either, and a kubelet with evented PLEG would take
// its unknown state for that of a container of the pod. Seen to fail with every container of the index named.
func TestAnEventNamesNoContainerThatIsBeingMade(t *testing.T) {
	x := index.New()
	log := slog.New(slog.DiscardHandler)
	pods := record.NewSandboxes(t.TempDir(), func(string) string { return "" }, log)
	s := index.NewSandbox(pods.New("pod", record.Sandbox{ID: "pod", Config: &model.SandboxConfig{}}))
	x.AdoptSandbox(s)
	table := record.NewContainers(t.TempDir(), nil, log)
	for _, phase := range []record.ContainerPhase{record.ContainerCreating, record.ContainerCreated} {
		id := string(phase)
		r := record.Container{ID: id, SandboxID: "pod", Phase: phase, Config: &model.ContainerConfig{}}
		x.AdoptContainer(index.NewContainer(table.New(id, r), s))
	}
	feed := New(x)
	ch := feed.Follow(t.Context())
	feed.Tell(s, "pod", model.EventStarted)
	if e := <-ch; len(e.Containers) != 1 || e.Containers[0].ID != string(record.ContainerCreated) {
		t.Errorf("the event names %d containers: %+v", len(e.Containers), e.Containers)
	}
}
