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

// publish tells all subscribers that a row has changed or is gone.
func (s *Server) publish(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.subs {
		sub.mark(id)
	}
}

func (s *Server) watch(ctx context.Context, id string, send func(*api.Event) error) error {
	sub := &subscriber{dirty: map[string]bool{}, wake: make(chan struct{}, 1), quit: make(chan struct{})}
	s.mu.Lock()
	if _, ok := s.subs[id]; ok || id == "" {
		s.mu.Unlock()
		return fmt.Errorf("watch %q: %w", id, errdefs.ErrAlreadyExists)
	}
	s.subs[id] = sub
	stop := s.stop
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.subs, id)
		s.mu.Unlock()
	}()
	for _, c := range s.all() {
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
			if c, err := s.get(id); err == nil {
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

func (s *Server) unwatch(id string) {
	s.mu.Lock()
	sub := s.subs[id]
	s.mu.Unlock()
	if sub != nil {
		sub.once.Do(func() { close(sub.quit) })
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
