package apply

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/launch"
	"berth/internal/cli/lookup"
	"berth/internal/cli/supervisor"
)

// StoppingPeriod is how often StillStopping is called.
const StoppingPeriod = 10 * time.Second

// askLimit bounds the question to systemd.
const askLimit = 5 * time.Second

// SystemStops says whether systemd shuts the system down, or reboots it. Without systemd, nobody can tell.
func SystemStops(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	// The bus of the system ends at that time too. This is a connection to systemd itself, as systemctl has.
	conn, err := dbus.NewSystemdConnectionContext(ctx)
	if err != nil {
		return false
	}
	defer conn.Close()
	state, err := conn.SystemStateContext(ctx)
	if err != nil {
		return false
	}
	text, _ := state.Value.Value().(string)
	return text == "stopping"
}

// shutDown stops all pods of the directory, with their preStop hooks and their grace periods, and leaves them stopped:
// after the boot they are started again. The pods of a StatefulSet are stopped one after another, the last one first.
// What keeps a pod ends here, and does not start it again.
func (a *Applier) shutDown(ctx context.Context) {
	a.note("the system shuts down: the pods of this directory are stopped")
	over := make(chan struct{})
	var told sync.WaitGroup
	told.Go(func() {
		for a.StillStopping != nil {
			a.StillStopping()
			select {
			case <-over:
				return
			case <-time.After(StoppingPeriod):
			}
		}
	})
	stopped := map[*keeper]chan struct{}{}
	later := map[*keeper][]*keeper{} // the pods that came after one
	for _, k := range a.keepers {
		stopped[k] = make(chan struct{})
		if k.before != nil {
			later[k.before] = append(later[k.before], k)
		}
	}
	var stops sync.WaitGroup
	for _, k := range a.keepers {
		stops.Go(func() {
			defer close(stopped[k])
			for _, other := range later[k] {
				if over, known := stopped[other]; known {
					<-over
				}
			}
			k.cancel()
			<-k.done
			k.mu.Lock()
			pod := k.running
			k.running = nil
			k.mu.Unlock()
			a.interrupt(ctx, pod)
		})
	}
	for _, k := range a.jobs {
		k.cancel()
		<-k.done
		for _, pod := range k.running() {
			k.forget(pod)
			stops.Go(func() { a.interrupt(ctx, pod) })
		}
	}
	stops.Wait()
	a.workers.Wait()
	a.stopOthers(ctx)
	close(over)
	told.Wait()
}

// interrupt stops a pod for a shutdown; nil: there is none.
func (a *Applier) interrupt(ctx context.Context, pod *supervisor.Pod) {
	if pod == nil {
		return
	}
	begin := time.Now()
	// Without the note, a container that handles SIGTERM and ends well would count as done after the boot.
	err := a.Store.Dir(pod.Namespace, pod.Name, string(pod.UID)).Interrupt(begin)
	if err == nil {
		err = pod.Halt(ctx)
	}
	a.noteStopped(pod.FullName(), begin, err)
}

// stopOthers stops the pods of the directory that nothing here has kept: of a file that is wrong, or whose start was
// cut off. Their hooks are not known.
func (a *Applier) stopOthers(ctx context.Context) {
	sandboxes, err := a.own(ctx)
	if err != nil {
		a.note("%s", connection.Message(err))
		return
	}
	var stops sync.WaitGroup
	for _, sandbox := range sandboxes {
		if sandbox.GetState() != cri.PodSandboxState_SANDBOX_READY {
			continue
		}
		stops.Go(func() {
			begin := time.Now()
			err := a.dir(sandbox).Interrupt(begin)
			if err == nil {
				err = launch.StopPod(ctx, a.Conn.Runtime, sandbox, -1)
			}
			a.noteStopped(lookup.PodName(sandbox), begin, err)
		})
	}
	stops.Wait()
}

func (a *Applier) noteStopped(name string, begin time.Time, err error) {
	if err == nil {
		a.note("pod %s is stopped, after %v", name, time.Since(begin).Round(time.Millisecond))
	} else if text := connection.Message(err); strings.Contains(text, name) {
		a.note("%s", text)
	} else {
		a.note("pod %s: %s", name, text)
	}
}
