package play

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"berth/internal/cli/connection"
	"berth/internal/cli/follow"
	"berth/internal/cli/launch"
	"berth/internal/cli/logview"
	"berth/internal/cli/lookup"
	"berth/internal/cli/poddir"
	"berth/internal/cli/streaming"
	"berth/internal/cli/supervisor"
	"berth/internal/cli/table"
	"berth/internal/manifest"
)

// StartedPod is the report of `run -d` about one pod.
type StartedPod struct {
	ID         string            `json:"id"`
	Name       string            `json:"name"`
	Namespace  string            `json:"namespace"`
	IPs        []string          `json:"ips,omitempty"`
	Containers map[string]string `json:"containers"` // IDs by name
	Took       time.Duration     `json:"nanoseconds"`
}

// Player runs the pods of a manifest.
type Player struct {
	Conn    *connection.Connection
	Store   *poddir.Store
	Printer *logview.Printer
	Notes   io.Writer // progress
	Err     io.Writer // warnings and failures
	Pull    func(ctx context.Context, image string, secrets [][]byte) (string, error)
	Detach  bool // leave the pods running
	Replace bool // remove pods of the same names first
	Keep    bool // stop the pods at the end, and do not remove them
	// Restore is the directory of a checkpoint of the only pod; empty: the pods are new.
	Restore string
	// Plain: the pod is a single command's. Its output is shown as it is, and only what is unusual is noted.
	Plain bool
	// Join joins this command's input or terminal to the only container; nil: they are not its own.
	Join *Join

	supervisor *supervisor.Supervisor
	follower   *follow.Follower
	mu         sync.Mutex // guards the rest
	running    []*supervisor.Pod
	reports    []StartedPod
}

// Run starts all pods. With Detach it returns once they run; otherwise it follows them to their end and removes them.
func (p *Player) Run(ctx context.Context, documents *manifest.Documents) ([]StartedPod, error) {
	p.warn(documents)
	host, err := launch.ReadHost()
	if err != nil {
		return nil, err
	}
	// The watch and the logs outlive Ctrl-C: they show how the pods end.
	watchCtx, endWatch := context.WithCancel(context.WithoutCancel(ctx))
	defer endWatch()
	// Output that cannot be written ends the run, as Ctrl-C does.
	run, endRun := context.WithCancel(ctx)
	defer endRun()
	p.follower = &follow.Follower{Printer: p.Printer, Err: p.Err, Fail: endRun, Several: documents.Several(),
		Plain: p.Plain}
	launcher := &launch.Launcher{
		Runtime: p.Conn.Runtime, Images: p.Conn.Images, Store: p.Store, Host: host,
		Watch: launch.NewWatch(watchCtx, p.Conn.Runtime), Pull: p.Pull,
		CreateWithVolumes: p.Conn.CreateWithVolumes, VolumePath: p.Conn.VolumePath,
		Repeatable: p.Detach || p.Keep || p.Join.detaches(),
		Restore:    p.Restore,
	}
	switch {
	case p.Detach:
	case p.Join != nil && p.Join.TTY:
		launcher.Begin = func(ctx context.Context, c *launch.Container) error {
			return p.Join.start(ctx, watchCtx, p.Conn, launcher.Watch, c, endRun)
		}
	default:
		launcher.Started = func(pod *launch.Pod, c *launch.Container) {
			p.follower.Start(watchCtx, launcher.Watch, pod, c)
			if p.Join != nil {
				p.Join.feed(watchCtx, p.Conn, c)
			}
		}
	}
	p.supervisor = &supervisor.Supervisor{Launcher: launcher, Notes: p.Notes, Once: p.Detach}
	if err := launcher.Sweep(ctx); err != nil {
		fmt.Fprintf(p.Err, "warning: what an earlier command left behind could not be removed: %v\n", err)
	}
	if err := p.makeRoom(ctx, documents.Groups); err != nil {
		return nil, err
	}
	code, err := p.runGroups(run, documents.Groups)
	if run.Err() != nil && ctx.Err() == nil {
		err = nil // the reason is with the follower, or with Join
	}
	if err == nil && ctx.Err() == nil {
		err = p.Join.wait() // while the container is there
	}
	if errors.Is(err, ErrDetached) {
		p.leave()
		return nil, nil
	}
	if err != nil || !p.Detach {
		if ctx.Err() != nil {
			fmt.Fprintln(p.Notes, "stopping; once more ends this command at once")
		}
		ended := p.end(ctx)
		err = errors.Join(p.told(err), ended, p.Join.wait())
		if unwritten := p.follower.Wait(); unwritten != nil {
			// It comes before the exit code of a container, and after a pod that is left.
			err = cmp.Or(ended, unwritten)
		}
	}
	switch {
	case err != nil:
		return nil, err
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case code != 0:
		return nil, &streaming.ExitError{Code: int(code)}
	}
	return p.reports, nil
}

// leave leaves the pod as it is, and says how to join it again.
func (p *Player) leave() {
	for _, pod := range p.running {
		pod.Leave()
		name := strings.TrimPrefix(pod.FullName(), "default/")
		fmt.Fprintf(p.Err, "\ndetached from pod %s, which runs on: `berth attach %[1]s` joins it, and `berth rm -f %[1]s` "+
			"removes it\n", name)
	}
}

// told shows an init container that has failed: its output has been shown, and its exit code is the command's.
func (p *Player) told(err error) error {
	var failed *launch.InitError
	if errors.As(err, &failed) && !p.Detach {
		fmt.Fprintf(p.Err, "berth: %v\n", err)
		return &streaming.ExitError{Code: int(failed.Status.GetExitCode())}
	}
	return err
}

func (p *Player) warn(documents *manifest.Documents) {
	for _, note := range documents.Notes {
		fmt.Fprintf(p.Err, "note: %s\n", note)
	}
	for _, group := range documents.Groups {
		if len(group.Pods) == 0 {
			continue
		}
		pod := group.Pods[0] // the others of a group have the same template
		for _, note := range pod.Notes {
			fmt.Fprintf(p.Err, "note: pod %s: %s\n", pod.Name, note)
		}
		for _, warning := range pod.Warnings {
			fmt.Fprintf(p.Err, "warning: pod %s: %s\n", pod.Name, warning)
		}
		if p.Detach && pod.Supervised() {
			fmt.Fprintf(p.Err, "note: pod %s: with -d nothing starts its containers again, and no probes, preStop hooks and "+
				"deadlines are run for it\n", pod.Name)
		}
	}
}

func at(ips []string) string {
	if len(ips) == 0 {
		return ""
	}
	return " at " + strings.Join(ips, ", ")
}

func newStartedPod(pod *supervisor.Pod, took time.Duration) StartedPod {
	s := StartedPod{ID: pod.SandboxID, Name: pod.Name, Namespace: pod.Namespace, IPs: pod.IPs,
		Containers: map[string]string{}, Took: took}
	for name, c := range pod.Last() {
		s.Containers[name] = c.ID
	}
	return s
}

// makeRoom removes the pods whose names or documents those of the manifest have, or refuses where there are any.
func (p *Player) makeRoom(ctx context.Context, groups []*manifest.Group) error {
	names, owners := map[string]bool{}, map[string]bool{}
	for _, group := range groups {
		owners[group.Owner.String()] = group.Owner.Kind != "Pod"
		for _, pod := range group.Pods {
			names[pod.FullName()] = true
		}
	}
	pods, err := lookup.Pods(ctx, p.Conn.Runtime)
	if err != nil {
		return err
	}
	for _, old := range pods {
		owner := old.GetAnnotations()[manifest.AnnotationOwner]
		if !names[lookup.PodName(old)] && !owners[owner] {
			continue
		}
		if !p.Replace {
			return fmt.Errorf("pod %s exists already (%s): remove it with `berth rm -f %s`, or give --replace, "+
				"or another name with --name",
				lookup.PodName(old), table.ShortID(old.GetId()), lookup.ShortPodName(old))
		}
		if _, own := p.Store.Owns(old); !own {
			return &poddir.NotOwnedError{Pod: lookup.ShortPodName(old), Root: p.Store.Root}
		}
		if directory := launch.Applied(p.Store, old); directory != "" {
			release, err := p.Store.Claim(directory)
			if err != nil {
				return fmt.Errorf("replace pod %s: %w", lookup.PodName(old), applyRuns(err))
			}
			defer release()
		}
		if err := launch.StopPod(ctx, p.Conn.Runtime, old, -1); err != nil {
			return err
		}
		if err := launch.RemovePod(ctx, p.Conn.Runtime, p.Store, old); err != nil {
			return err
		}
	}
	return nil
}
