package daemon

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	api "berth/api/keeper"
	"berth/internal/keeper/gate"
	"berth/internal/keeper/protocol"
)

func (s *Server) watch(ctx context.Context, id string, send func(*api.Event) error) error {
	sub, err := s.events.Subscribe(id)
	if err != nil {
		return err
	}
	defer s.events.Unsubscribe(id)
	stop := s.gate.Stopped()
	for _, c := range s.containers.all() {
		if err := send(&api.Event{Status: wireStatus(c.status())}); err != nil {
			return err
		}
	}
	if err := send(&api.Event{Synced: true}); err != nil {
		return err
	}
	for {
		for _, id := range sub.Take() {
			e := &api.Event{Status: &api.ContainerStatus{Id: id}, Gone: true}
			if c, err := s.containers.get(id); err == nil {
				e = &api.Event{Status: wireStatus(c.status())}
			}
			if err := send(e); err != nil {
				return err
			}
		}
		select {
		case <-sub.Wake:
		case <-sub.Quit:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-stop:
			return gate.ErrUpgrading
		}
	}
}

func wireStatus(st protocol.Status) *api.ContainerStatus {
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

func wireSetup(s protocol.Setup) *api.Setup {
	return &api.Setup{Engine: string(s.Engine), Reason: s.Reason, ExecEngine: string(s.ExecEngine),
		ExecReason: s.ExecReason}
}
