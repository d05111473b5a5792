package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// peer is a runtime under measurement.
type peer struct {
	name    string
	version string
	image   string // a busybox
	host    string // what references to the big image begin with
	socket  string
	logDir  string                  // directory for logs
	cgroup  func(pod string) string // of a pod; nil: the runtime's own choice
	runtime cri.RuntimeServiceClient
	images  cri.ImageServiceClient
	close   func() error
	cpu     func() (node.CPUUsage, error)        // processor time so far, of all that it runs; nil for a peer not ours
	kill    func() error                         // ends the daemon with SIGKILL; nil for a peer that is not ours
	restart func(context.Context) error          // starts it again and waits until it is ready
	fresh   func(context.Context) (*peer, error) // starts one more of its kind, which has no state yet

	further []string // versions of what it runs, such as runc
	seccomp cri.SecurityProfile_ProfileType

	own processes // the runtime's own, as found so far
}

var serial atomic.Int64

// mark is in the environment of every container of this run, so that its processes are known in /proc.
var mark = fmt.Sprintf("BERTH_BENCH=%d.%d", os.Getpid(), time.Now().UnixNano())

// pod is a pod with one container.
type pod struct {
	id, container string
	running       bool // its container has been started
	config        *cri.PodSandboxConfig
}

// limits are those of every container.
func limits() *cri.LinuxContainerResources {
	return &cri.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 200000, CpuShares: 512, MemoryLimitInBytes: 256 << 20}
}

// times are how long the calls of a start took.
type times struct{ run, create, start time.Duration }

// start runs a pod with one container. What it has made is in the pod even where it fails.
func (p *peer) start(ctx context.Context, edit func(*cri.ContainerConfig)) (*pod, times, error) {
	name := fmt.Sprintf("bench%d", serial.Add(1))
	made := &pod{config: &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: "bench", Uid: fmt.Sprintf("%s-%d", name, os.Getpid())},
		Hostname:     name,
		LogDirectory: filepath.Join(p.logDir, name),
		Linux: &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER},
		}},
	}}
	if p.cgroup != nil {
		made.config.Linux.CgroupParent = p.cgroup(name)
	}
	var t times
	began := time.Now()
	sandbox, err := p.runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: made.config})
	t.run = time.Since(began)
	if err != nil {
		return made, t, err
	}
	made.id = sandbox.PodSandboxId
	config := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "c"},
		Image:    &cri.ImageSpec{Image: p.image},
		Command:  []string{"sleep", "1000000"},
		Envs:     []*cri.KeyValue{{Key: mark[:len("BERTH_BENCH")], Value: []byte(mark[len("BERTH_BENCH="):])}},
		LogPath:  "c.log",
		Linux: &cri.LinuxContainerConfig{Resources: limits(), SecurityContext: &cri.LinuxContainerSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER},
			Seccomp:          &cri.SecurityProfile{ProfileType: p.seccomp},
		}},
	}
	if edit != nil {
		edit(config)
	}
	began = time.Now()
	container, err := p.runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: made.id, Config: config, SandboxConfig: made.config,
	})
	t.create = time.Since(began)
	if err != nil {
		return made, t, err
	}
	made.container = container.ContainerId
	began = time.Now()
	_, err = p.runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: made.container})
	t.start, made.running = time.Since(began), err == nil
	return made, t, err
}

// remove stops and removes a pod, also once ctx has ended.
func (p *peer) remove(ctx context.Context, made *pod) error {
	if made == nil || made.id == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if made.container != "" {
		// The grace period is no runtime's doing.
		if _, err := p.runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: made.container}); err != nil {
			return err
		}
	}
	if _, err := p.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: made.id}); err != nil {
		return err
	}
	if _, err := p.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: made.id}); err != nil {
		return err
	}
	return os.RemoveAll(made.config.LogDirectory)
}

func (p *peer) exec(ctx context.Context, container string) error {
	r, err := p.runtime.ExecSync(ctx,
		&cri.ExecSyncRequest{ContainerId: container, Cmd: []string{"/bin/true"}, Timeout: 30})
	if err == nil && r.ExitCode != 0 {
		err = fmt.Errorf("/bin/true ended with %d: %s", r.ExitCode, r.Stderr)
	}
	return err
}

// warm pulls the image, and lets a pod live once, by which the runtime's own processes are found.
func (p *peer) warm(ctx context.Context) error {
	if _, err := p.images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: p.image}}); err != nil {
		return err
	}
	made, _, err := p.start(ctx, nil)
	if err == nil {
		err = p.exec(ctx, made.container)
	}
	if err == nil {
		err = p.own.find(p.socket)
	}
	return errors.Join(err, p.remove(ctx, made))
}

// life is one pod: started, probed, stopped and removed.
func (p *peer) life(ctx context.Context, execs int, r *result) error {
	made, t, err := p.start(ctx, nil)
	if err == nil {
		r.add(rowRun, t.run)
		r.add(rowCreate, t.create)
		r.add(rowStart, t.start)
		r.add(rowSum, t.run+t.create+t.start)
		err = p.execs(ctx, made, execs, r.Figures)
	}
	began := time.Now()
	removeErr := p.remove(ctx, made)
	if err == nil && removeErr == nil {
		r.add(rowRemove, time.Since(began))
	}
	return errors.Join(err, removeErr)
}

// execs are exec probes in a pod, one after another.
func (p *peer) execs(ctx context.Context, made *pod, count int, f figures) error {
	for range count {
		began := time.Now()
		if err := p.exec(ctx, made.container); err != nil {
			return err
		}
		f.add(rowExec, time.Since(began))
	}
	return nil
}

// inFlight calls work from several goroutines until each has seen more say no, and returns the first error.
func inFlight(workers int, more func() bool, work func() error) error {
	var wg sync.WaitGroup
	errs := make([]error, workers)
	for i := range workers {
		wg.Go(func() {
			for more() && errs[i] == nil {
				errs[i] = work()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// probes counts exec probes, each worker in a pod of its own.
func (p *peer) probes(ctx context.Context, workers int, span time.Duration, r *result) error {
	pods := make(chan *pod, workers)
	defer close(pods)
	var all []*pod
	var err error
	for range workers {
		made, _, startErr := p.start(ctx, nil)
		all = append(all, made)
		if err = startErr; err != nil {
			break
		}
		pods <- made
	}
	if err == nil {
		var mu sync.Mutex // guards took
		var took []float64
		began := time.Now()
		err = inFlight(workers, func() bool { return time.Since(began) < span }, func() error {
			target := <-pods
			defer func() { pods <- target }()
			began := time.Now()
			err := p.exec(ctx, target.container)
			mu.Lock()
			defer mu.Unlock()
			took = append(took, rowExecBusy.of(time.Since(began)))
			return err
		})
		if err == nil {
			r.value(rowExecs, float64(len(took))/time.Since(began).Seconds())
			r.value(rowExecBusy, took...)
		}
	}
	for _, made := range all {
		err = errors.Join(err, p.remove(ctx, made))
	}
	return err
}

// upTo says yes so many times.
func upTo(count int) func() bool {
	var next atomic.Int64
	return func() bool { return next.Add(1) <= int64(count) }
}

// many starts pods, some at a time, as long as more says yes, and returns all that were made.
func (p *peer) many(ctx context.Context, workers int, more func() bool) (all []*pod, took time.Duration, err error) {
	var mu sync.Mutex // guards all
	began := time.Now()
	err = inFlight(workers, more, func() error {
		made, _, err := p.start(ctx, nil)
		mu.Lock()
		all = append(all, made)
		mu.Unlock()
		return err
	})
	return all, time.Since(began), err
}

func (p *peer) removeMany(ctx context.Context, all []*pod) error {
	var next atomic.Int64
	return inFlight(4, func() bool { return next.Load() < int64(len(all)) }, func() error {
		if i := next.Add(1); i <= int64(len(all)) {
			return p.remove(ctx, all[i-1])
		}
		return nil
	})
}

// burst starts pods with some in flight, until all run.
func (p *peer) burst(ctx context.Context, workers, count int, r *result) error {
	all, took, err := p.many(ctx, workers, upTo(count))
	if err == nil {
		r.value(rowBurst, float64(count)/took.Seconds())
	}
	return errors.Join(err, p.removeMany(ctx, all))
}

// density measures what pods cost that do nothing.
func (p *peer) density(ctx context.Context, o *options, r *result) error {
	if err := sleep(ctx, o.settle); err != nil {
		return err
	}
	empty, err := p.own.memory()
	if err != nil {
		return err
	}
	all, _, err := p.many(ctx, 4, upTo(o.pods))
	if err == nil {
		err = p.withPods(ctx, o, empty, r)
	}
	return errors.Join(err, p.removeMany(ctx, all))
}

const mib = 1 << 20

func (p *peer) withPods(ctx context.Context, o *options, empty uint64, r *result) error {
	if err := p.own.find(p.socket); err != nil {
		return err
	}
	if err := sleep(ctx, o.settle); err != nil {
		return err
	}
	full, err := p.own.memory()
	if err != nil {
		return err
	}
	r.value(rowPSS0, float64(empty)/mib)
	r.value(rowPSSN, float64(full)/mib)
	r.value(rowPSSPod, (float64(full)-float64(empty))/mib/float64(o.pods))
	r.Processes = p.own.names()
	before, sleeps := p.own.cpu(), p.own.voluntary()
	if err := sleep(ctx, o.idle); err != nil {
		return err
	}
	r.value(rowIdleWakeups, float64(p.own.voluntary()-sleeps)/o.idle.Seconds())
	r.value(rowIdle, 100*(p.own.cpu()-before).Seconds()/o.idle.Seconds())
	return p.lists(ctx, o.pods, r.Figures)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
