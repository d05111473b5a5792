package pod

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	keeper "berth/internal/keeper/client"
	"berth/internal/model"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
)

// startUnderWay has a pod with a container that the keeper still starts, at the request of an earlier berthd.
func (n *memoryNode) startUnderWay() (pod, id string) {
	n.t.Helper()
	pod, err := n.RunSandbox(n.t.Context(), podConfig(), "")
	if err != nil {
		n.t.Fatal(err)
	}
	if id, err = n.CreateContainer(n.t.Context(), pod, serverConfig()); err != nil {
		n.t.Fatal(err)
	}
	_, c := n.index.ByID(id)
	if err := c.Update(record.Save, func(r *record.Container) { r.Phase = record.ContainerStarting }); err != nil {
		n.t.Fatal(err)
	}
	n.host.mu.Lock()
	n.host.running[id] = &memoryContainer{status: keeper.Status{ID: id, PodID: pod, State: keeper.StateStarting}}
	n.host.mu.Unlock()
	return pod, id
}

// TestAStopEndsAStartThatRecoveryCouldNot: its locks are free between two tries of recovery, and the program of a
// container that has been stopped does not begin. Seen to fail without the stop's own call to the keeper.
func TestAStopEndsAStartThatRecoveryCouldNot(t *testing.T) {
	for name, stop := range map[string]func(*memoryNode, string, string) error{
		"StopContainer": func(n *memoryNode, _, id string) error {
			return n.StopContainer(t.Context(), id, time.Minute)
		},
		"StopPodSandbox": func(n *memoryNode, pod, _ string) error { return n.StopSandbox(t.Context(), pod) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newMemoryNode(t)
			pod, id := n.startUnderWay()
			if err := stop(n, pod, id); err != nil {
				t.Fatal(err)
			}
			n.host.mu.Lock()
			defer n.host.mu.Unlock()
			if c := n.host.running[id]; c != nil {
				t.Errorf("after the stop the keeper has it as %s", c.status.State)
			}
		})
	}
}

// TestAStopOfAStartThatHasBegunMeanwhileIsAStop: recovery has not looked yet. The container is told as ended, with its
// signal, and not as one that has never run. Seen to fail when the keeper was told to delete it.
func TestAStopOfAStartThatHasBegunMeanwhileIsAStop(t *testing.T) {
	n := newMemoryNode(t)
	pod, id := n.startUnderWay()
	n.host.begin(id)
	if err := n.StopContainer(t.Context(), id, time.Minute); err != nil {
		t.Fatal(err)
	}
	if st := n.status(id); st.State != model.ContainerExited || st.ExitCode != 128+int32(syscall.SIGTERM) {
		t.Errorf("after the stop it is %s: %d", st.State, st.ExitCode)
	}
	if err := n.RemoveSandbox(t.Context(), pod); err != nil {
		t.Error(err)
	}
	n.wantNothing("a stop")
}

// silentKeeper does not say what becomes of a container when it is asked the first times.
type silentKeeper struct {
	memoryKeeper
	id     string
	silent atomic.Int32 // how many more times
	last   func()       // called when it is silent for the last time
}

func (k *silentKeeper) Status(ctx context.Context, id string) (*keeper.Status, error) {
	if id != k.id || k.silent.Load() <= 0 {
		return k.memoryKeeper.Status(ctx, id)
	}
	if k.silent.Add(-1) == 0 {
		k.last()
	}
	return nil, errFault
}

// TestAStartThatBeginsWhileTheKeeperIsSilentIsNotEnded: recovery asks once more before it ends a start. Seen to fail
// without that: the container that had run was created again.
func TestAStartThatBeginsWhileTheKeeperIsSilentIsNotEnded(t *testing.T) {
	n := newMemoryNode(t)
	pod, id := n.startUnderWay()
	k := &silentKeeper{memoryKeeper: memoryKeeper{n.host}, id: id, last: func() { n.host.begin(id) }}
	k.silent.Store(2) // for the start of berthd, and for what waits in the background
	n.cfg.Keeper = k
	n.restart()
	end := time.Now().Add(time.Minute)
	for n.status(id).State != model.ContainerRunning {
		if time.Now().After(end) {
			t.Fatalf("it is %s", n.status(id).State)
		}
		time.Sleep(time.Millisecond)
	}
	if err := n.RemoveSandbox(t.Context(), pod); err != nil {
		t.Error(err)
	}
	n.wantNothing("a start")
}

// TestAStartThatIsEndedLateIsNotMadeAgain: its program begins while the keeper ends it. Seen to fail, with the
// container created, when recovery or a stop took an ended start for one whose program never began, and where the
// record did not say before a kill of berthd that the start was being ended.
func TestAStartThatIsEndedLateIsNotMadeAgain(t *testing.T) {
	const recovers, stops, killed = "recovery", "StopContainer", "a stop and a kill"
	for _, name := range []string{recovers, stops, killed} {
		t.Run(name, func(t *testing.T) {
			n := newMemoryNode(t)
			pod, id := n.startUnderWay()
			begun := 0
			n.host.endStarting = func(string) {
				n.host.begin(id)
				begun++
				if name == killed {
					n.host.mu.Lock()
					defer n.host.mu.Unlock()
					delete(n.host.running, id)
					runtime.Goexit()
				}
			}
			if name == recovers {
				k := &silentKeeper{memoryKeeper: memoryKeeper{n.host}, id: id, last: func() {}}
				k.silent.Store(2) // for the start of berthd, and for what waits in the background
				n.cfg.Keeper = k
				n.restart()
				for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
					if _, c := n.index.ByID(id); c.Record().Phase != record.ContainerStarting {
						break
					}
				}
			} else {
				stopped := make(chan error)
				go func() {
					defer close(stopped)
					stopped <- n.StopContainer(t.Context(), id, time.Minute)
				}()
				if err := <-stopped; err != nil {
					t.Fatal(err)
				}
				n.restart()
			}
			if st := n.status(id); st.State != model.ContainerExited || begun != 1 {
				t.Errorf("it is %s, and the program has begun %d times", st.State, begun)
			}
			if err := n.StartContainer(t.Context(), id); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("another start: %v", err)
			}
			if err := n.RemoveSandbox(t.Context(), pod); err != nil {
				t.Error(err)
			}
			n.wantNothing("a start that was ended")
		})
	}
}

// stubbornKeeper has containers that only SIGKILL ends, and counts the other signals.
type stubbornKeeper struct {
	memoryKeeper
	fail    atomic.Bool // the next signal is not sent
	signals atomic.Int32
}

func (k *stubbornKeeper) Signal(ctx context.Context, id string, sig syscall.Signal, all bool) error {
	switch {
	case sig == syscall.SIGKILL:
		return k.memoryKeeper.Signal(ctx, id, sig, all)
	case k.fail.Swap(false):
		return errFault
	}
	k.signals.Add(1)
	time.Sleep(time.Millisecond) // so that another stop comes meanwhile
	return nil
}

// TestAStopSignalIsSentOnce, whatever number of stops there is: one after the other, at the same time, and after a
// restart of berthd. The last timeout counts. Seen to fail with a signal for each stop, and without the container's
// lock around it.
func TestAStopSignalIsSentOnce(t *testing.T) {
	n := newMemoryNode(t)
	pod, id := n.run()
	k := &stubbornKeeper{memoryKeeper: memoryKeeper{n.host}}
	n.cfg.Keeper = k
	n.restart()
	stop := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		return n.StopContainer(ctx, id, time.Minute)
	}
	want := func(after string, signals int32) {
		t.Helper()
		if got := k.signals.Load(); got != signals {
			t.Errorf("%s: %d stop signals, want %d", after, got, signals)
		}
	}
	k.fail.Store(true)
	if err := stop(); !errors.Is(err, errFault) {
		t.Errorf("a signal that is not sent: %v", err)
	}
	want("a failure", 0)
	errs := make(chan error, 8)
	for range cap(errs) {
		go func() { errs <- stop() }()
	}
	for range cap(errs) {
		if err := <-errs; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a stop of a container that goes on: %v", err)
		}
	}
	want("stops at the same time", 1)
	n.restart()
	if err := stop(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a stop after a restart: %v", err)
	}
	want("a restart", 1)
	if err := n.StopContainer(t.Context(), id, time.Millisecond); err != nil {
		t.Error(err)
	}
	want("a shorter stop", 1)
	if st := n.status(id); st.ExitCode != 128+int32(syscall.SIGKILL) {
		t.Errorf("it has ended with %d", st.ExitCode)
	}
	if err := n.RemoveSandbox(t.Context(), pod); err != nil {
		t.Error(err)
	}
	n.wantNothing("stops")
}

// begin lets the program of startUnderWay begin.
func (h *memoryHost) begin(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pid++
	st := &h.running[id].status
	st.State, st.PID, st.StartedAt = keeper.StateRunning, h.pid, time.Now()
}

// TestNoContainerBeginsAfterItsStop: a start that an earlier berthd has asked for is decided before a stop is answered.
// Seen to fail when the stop took a container that is being started for one that does not run.
func TestNoContainerBeginsAfterItsStop(t *testing.T) {
	for name, stop := range map[string]func(*memoryNode, context.Context, string, string) error{
		"StopContainer": func(n *memoryNode, ctx context.Context, _, id string) error {
			return n.StopContainer(ctx, id, time.Minute)
		},
		"StopPodSandbox": func(n *memoryNode, ctx context.Context, pod, _ string) error { return n.StopSandbox(ctx, pod) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newMemoryNode(t)
			pod, id := n.startUnderWay()
			n.restart()
			short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			if err := stop(n, short, pod, id); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the stop of a container whose start is not decided: %v", err)
			}
			n.host.begin(id)
			if err := stop(n, t.Context(), pod, id); err != nil {
				t.Error(err)
			}
			if st := n.status(id); st.State != model.ContainerExited || st.StartedAt.IsZero() {
				t.Errorf("after the stop it is %s, started at %v", st.State, st.StartedAt)
			}
			if err := n.RemoveSandbox(t.Context(), pod); err != nil {
				t.Error(err)
			}
			n.wantNothing(name)
		})
	}
}

// TestARemovalOfAContainerThatStartsTellsOfItsEndFirst, before it tells that the container is gone. Seen to fail when
// only a container that ran at the beginning of its removal was killed.
func TestARemovalOfAContainerThatStartsTellsOfItsEndFirst(t *testing.T) {
	n := newMemoryNode(t)
	pod, err := n.RunSandbox(t.Context(), podConfig(), "")
	if err != nil {
		t.Fatal(err)
	}
	id, err := n.CreateContainer(t.Context(), pod, serverConfig())
	if err != nil {
		t.Fatal(err)
	}
	events := n.events.Follow(t.Context())
	begun, goOn := make(chan struct{}), make(chan struct{})
	n.host.beforeRun = func() { close(begun); <-goOn }
	started, removed := make(chan error, 1), make(chan error, 1)
	go func() { started <- n.StartContainer(t.Context(), id) }()
	<-begun
	waits := newWaiter(t.Context(), 2) // for the locks of the pod and of the container
	go func() { removed <- n.RemoveContainer(waits, id) }()
	<-waits.reached
	close(goOn)
	if err := errors.Join(<-started, <-removed); err != nil {
		t.Fatal(err)
	}
	var got []model.ContainerEventType
	for len(got) == 0 || got[len(got)-1] != model.EventDeleted {
		if e := <-events; e.ContainerID == id {
			got = append(got, e.Type)
		}
	}
	want := []model.ContainerEventType{model.EventStarted, model.EventStopped, model.EventDeleted}
	if !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
}

// TestAStopWaitsForNoCheckpoint, neither one that is under way nor one that came before the stop and waits for that.
// Seen to fail when a stop ended the first alone: it waited for the second one's whole time.
func TestAStopWaitsForNoCheckpoint(t *testing.T) {
	for name, stop := range map[string]func(*memoryNode, context.Context, string, string) error{
		"StopContainer": func(n *memoryNode, ctx context.Context, _, id string) error {
			return n.StopContainer(ctx, id, time.Minute)
		},
		"StopPodSandbox":  func(n *memoryNode, ctx context.Context, pod, _ string) error { return n.StopSandbox(ctx, pod) },
		"RemoveContainer": func(n *memoryNode, ctx context.Context, _, id string) error { return n.RemoveContainer(ctx, id) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newMemoryNode(t)
			pod, id := n.run()
			begun := make(chan struct{}, 2)
			n.host.checkpoint = func(ctx context.Context) error {
				begun <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			}
			ended := make(chan error, 2)
			checkpoint := func(ctx context.Context) {
				ended <- n.CheckpointContainer(ctx, id, filepath.Join(n.cfg.Root, "archive"), time.Hour)
			}
			waiting, giveUp := context.WithCancel(t.Context())
			defer giveUp()
			go checkpoint(waiting)
			<-begun
			go checkpoint(waiting)
			waitForWaiters(t, 1)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if err := stop(n, ctx, pod, id); err != nil {
				t.Error(err)
				giveUp()
			}
			if first := <-ended; !errors.Is(first, index.ErrCut) {
				t.Errorf("the checkpoint under way ended with %v", first)
			}
			if second := <-ended; !errdefs.IsFailedPrecondition(second) && !errdefs.IsNotFound(second) {
				t.Errorf("the checkpoint that waited ended with %v", second)
			}
		})
	}
}

// waitForWaiters waits until so many goroutines wait for the locks of operations.
func waitForWaiters(t *testing.T, many int) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte("operation.Lock.hold(")) == many {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d goroutines do not come to wait for locks", many)
		}
	}
}

// TestWhoWaitsForARemovalFindsNothing. Seen to fail when such a call was told that the container is removing.
func TestWhoWaitsForARemovalFindsNothing(t *testing.T) {
	for name, call := range map[string]func(*memoryNode, string) error{
		"StartContainer": func(n *memoryNode, id string) error { return n.StartContainer(t.Context(), id) },
		"PauseContainer": func(n *memoryNode, id string) error { return n.PauseContainer(t.Context(), id) },
		"UpdateContainerResources": func(n *memoryNode, id string) error {
			return n.UpdateContainerResources(t.Context(), id, &model.Resources{MemoryLimit: 1 << 30}, nil)
		},
	} {
		n := newMemoryNode(t)
		_, id := n.run()
		if err := n.StopContainer(t.Context(), id, 0); err != nil {
			t.Fatal(err)
		}
		_, c := n.index.ByID(id)
		release, err := c.Lock(t.Context(), "test")
		if err != nil {
			t.Fatal(err)
		}
		removed, called := make(chan error, 1), make(chan error, 1)
		go func() { removed <- n.RemoveContainer(t.Context(), id) }()
		waitForWaiters(t, 1)
		go func() { called <- call(n, id) }()
		waitForWaiters(t, 2)
		release()
		if err := <-removed; err != nil {
			t.Error(err)
		}
		if err := <-called; !errdefs.IsNotFound(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// waiter is a context that tells when a call has come to wait with it for the nth time.
type waiter struct {
	context.Context
	left    atomic.Int32
	reached chan struct{} // closed then
}

func newWaiter(ctx context.Context, nth int32) *waiter {
	w := &waiter{Context: ctx, reached: make(chan struct{})}
	w.left.Store(nth)
	return w
}

// Done is what whoever waits asks for.
func (w *waiter) Done() <-chan struct{} {
	if w.left.Add(-1) == 0 {
		close(w.reached)
	}
	return w.Context.Done()
}
