package server

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/timestamppb"

	api "berth/api/keeper"
	"berth/internal/keeper"
)

// subscriber is told of changes. It holds names only, so that one that is slow gets fewer, newer events.
type subscriber struct {
	mu    sync.Mutex
	dirty map[string]bool
	order []string
	wake  chan struct{}
	quit  chan struct{}
	once  sync.Once
}

func (s *subscriber) mark(id string) {
	s.mu.Lock()
	if !s.dirty[id] {
		s.dirty[id] = true
		s.order = append(s.order, id)
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *subscriber) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := s.order
	s.order = nil
	clear(s.dirty)
	return ids
}

// events tells subscribers of changes.
type events struct {
	mu   sync.Mutex
	subs map[string]*subscriber
}

// publish tells all subscribers that a record has changed or is gone.
func (e *events) publish(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, sub := range e.subs {
		sub.mark(id)
	}
}

// subscribe adds a subscriber of this name. The error is ErrAlreadyExists.
func (e *events) subscribe(id string) (*subscriber, error) {
	sub := &subscriber{dirty: map[string]bool{}, wake: make(chan struct{}, 1), quit: make(chan struct{})}
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.subs[id]; ok || id == "" {
		return nil, fmt.Errorf("watch %q: %w", id, errdefs.ErrAlreadyExists)
	}
	e.subs[id] = sub
	return sub, nil
}

func (e *events) unsubscribe(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.subs, id)
}

func (e *events) unwatch(id string) {
	e.mu.Lock()
	sub := e.subs[id]
	e.mu.Unlock()
	if sub != nil {
		sub.once.Do(func() { close(sub.quit) })
	}
}

func (s *Server) watch(ctx context.Context, id string, send func(*api.Event) error) error {
	sub, err := s.events.subscribe(id)
	if err != nil {
		return err
	}
	defer s.events.unsubscribe(id)
	stop := s.gate.stopped()
	for _, c := range s.containers.all() {
		if err := send(&api.Event{Status: wireStatus(c.status())}); err != nil {
			return err
		}
	}
	if err := send(&api.Event{Synced: true}); err != nil {
		return err
	}
	for {
		for _, id := range sub.take() {
			e := &api.Event{Status: &api.ContainerStatus{Id: id}, Gone: true}
			if c, err := s.containers.get(id); err == nil {
				e = &api.Event{Status: wireStatus(c.status())}
			}
			if err := send(e); err != nil {
				return err
			}
		}
		select {
		case <-sub.wake:
		case <-sub.quit:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-stop:
			return errUpgrading
		}
	}
}

func wireStatus(st keeper.Status) *api.ContainerStatus {
	w := &api.ContainerStatus{
		Id: st.ID, PodId: st.PodID, State: string(st.State), Pid: int32(st.PID), ExitCode: int32(st.ExitCode),
		OomKilled: st.OOMKilled, Lost: st.Lost, LogDone: st.LogDone, Orphan: st.Orphan, Setup: wireSetup(st.Setup),
	}
	if !st.StartedAt.IsZero() {
		w.StartedAt = timestamppb.New(st.StartedAt)
	}
	if !st.FinishedAt.IsZero() {
		w.FinishedAt = timestamppb.New(st.FinishedAt)
	}
	return w
}

func wireSetup(s keeper.Setup) *api.Setup {
	return &api.Setup{Engine: string(s.Engine), Reason: s.Reason, ExecEngine: string(s.ExecEngine), ExecReason: s.ExecReason}
}
