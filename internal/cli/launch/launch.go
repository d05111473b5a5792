package launch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
	"berth/internal/cli/poddir"
	"berth/internal/manifest"
)

// Launcher runs pods on one runtime.
type Launcher struct {
	Runtime cri.RuntimeServiceClient
	Images  cri.ImageServiceClient
	Store   *poddir.Store
	// Host is what pods are told about this machine; nil: each pod is told what holds when it is made.
	Host  *manifest.Host
	Watch *Watch
	// CreateWithVolumes creates a container that mounts named volumes.
	CreateWithVolumes func(context.Context, *cri.CreateContainerRequest) (*cri.CreateContainerResponse, error)
	// VolumePath is the directory of a named volume that is there.
	VolumePath func(ctx context.Context, volume string) (string, error)
	// Pull pulls an image and returns its reference for a container. secrets are the pod's, each as a config.json.
	Pull func(ctx context.Context, image string, secrets [][]byte) (string, error)
	// Repeatable: the pods outlive this command. The requests of containers are kept, so that Restart can make them again,
	// and the runtime rotates their logs, which no command looks at then.
	Repeatable bool
	// Restore is the directory of a checkpoint of a pod, from which Prepare makes the pod with its containers; empty: it
	// makes new ones.
	Restore string
	// Begin starts a container that is created; nil: StartContainer does.
	Begin func(context.Context, *Container) error
	// Started is told of each container as it is started, before anything waits for it.
	Started func(*Pod, *Container)
}

// Container is a container that runs or has run.
type Container struct {
	Name    string
	ID      string
	Kind    string // manifest.KindInit, manifest.KindSidecar or nothing
	Attempt int    // how often it was started before
	LogPath string // absolute
	// MessagePath is the file to which the container may write why it has ended.
	MessagePath string
}

// Pod is a pod that runs.
type Pod struct {
	*manifest.Pod
	SandboxID  string
	Host       *manifest.Host
	IPs        []string
	Containers []*Container // in the order in which they were started; mu guards it
	// Found is the last attempt of each container that was there when the pod was adopted, by name.
	Found   map[string]*Found
	Created time.Time // of a pod that was adopted
	mu      sync.Mutex
	dir     *poddir.Dir
	images  *images
	volumes poddir.Volumes
	hosts   *cri.Mount // nil where the runtime's own will do
	// restored are the containers of a checkpoint that were not started yet, by name; nil: the pod is of none.
	restored map[string]*Container
	// given are the names of the volumes of claims that are the fsGroup's already; mu guards it.
	given   map[string]bool
	release func() // of a pod that is held; nil: it is not
}

// Release lets other commands run the pod, if this one has held it.
func (p *Pod) Release() {
	if p.release != nil {
		p.release()
		p.release = nil
	}
}

// Last is the last attempt of each container that has been started, by name.
func (p *Pod) Last() map[string]*Container {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := map[string]*Container{}
	for _, c := range p.Containers {
		last[c.Name] = c
	}
	return last
}

// InitError is an init container that failed.
type InitError struct {
	Pod       string
	Container *Container
	Status    *cri.ContainerStatus
}

func (e *InitError) Error() string {
	text := fmt.Sprintf("init container %s of pod %s ended with exit code %d (%s)", e.Container.Name, e.Pod,
		e.Status.GetExitCode(), e.Status.GetReason())
	if message := e.Status.GetMessage(); message != "" {
		text += ": " + message
	}
	return text
}

// Sweep removes what killed commands have left behind.
func (l *Launcher) Sweep(ctx context.Context) error {
	return l.Store.Sweep(func() (map[string]bool, error) {
		pods, err := lookup.Pods(ctx, l.Runtime)
		if err != nil {
			return nil, err
		}
		uids := map[string]bool{}
		for _, pod := range pods {
			uids[pod.GetMetadata().GetUid()] = true
		}
		return uids, nil
	})
}

// Prepare makes a pod without its containers, unless it is restored. A pod that cannot be made is removed again.
func (l *Launcher) Prepare(ctx context.Context, pod *manifest.Pod) (*Pod, error) {
	images, err := l.images(ctx, pod, nil)
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", pod.FullName(), err)
	}
	prepared := &Pod{Pod: pod, images: images}
	if prepared.Host, err = l.host(); err == nil {
		err = l.sandbox(ctx, prepared)
	}
	if err == nil {
		prepared.hosts, err = l.hosts(prepared)
	}
	if err != nil {
		return nil, l.Discard(ctx, prepared, fmt.Errorf("pod %s: %w", pod.FullName(), err))
	}
	return prepared, nil
}

// Discard removes what there is of a pod that did not start, and returns the reason together with what goes wrong then.
func (l *Launcher) Discard(ctx context.Context, pod *Pod, reason error) error {
	// The caller's context may be what ended the start.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return errors.Join(reason, l.discard(ctx, pod))
}

// placement is what the node adds to an attempt of a container.
func (l *Launcher) placement(ctx context.Context, pod *Pod, c *corev1.Container, attempt int) (
	*manifest.Placement, error) {
	at := &manifest.Placement{Host: pod.Host, Image: pod.images.byContainer[c.Name], Attempt: attempt}
	var err error
	if at.Env, err = pod.Environment(c, pod.Host, pod.IPs); err != nil {
		return nil, err
	}
	mounts, err := l.mounts(ctx, pod, c)
	if err != nil {
		return nil, err
	}
	if at.Mounts, err = pod.dir.Mounts(c.Name, attempt, mounts, pod.volumes, at.Env.ExpandPath); err != nil {
		return nil, err
	}
	for _, m := range at.Mounts { // as a kubelet has the volumes of a pod with a user namespace mapped
		if m.HostPath != "" {
			m.UidMappings, m.GidMappings = pod.IDMappings(), pod.IDMappings()
		}
	}
	if pod.hosts != nil && !mountsHosts(c) {
		hosts := proto.CloneOf(pod.hosts)
		// It is a part of the root file system to who has it read-only.
		hosts.Readonly = c.SecurityContext != nil && c.SecurityContext.ReadOnlyRootFilesystem != nil &&
			*c.SecurityContext.ReadOnlyRootFilesystem
		at.Mounts = append(at.Mounts, hosts)
	}
	at.LogPath, err = pod.dir.MakeLog(c.Name, attempt)
	return at, err
}

// mounts are a container's mounts. Those with recursiveReadOnly: IfPossible have what the pod's runtime handler can do.
func (l *Launcher) mounts(ctx context.Context, pod *Pod, c *corev1.Container) ([]corev1.VolumeMount, error) {
	ifPossible := func(m corev1.VolumeMount) bool {
		return m.RecursiveReadOnly != nil && *m.RecursiveReadOnly == corev1.RecursiveReadOnlyIfPossible
	}
	if !slices.ContainsFunc(c.VolumeMounts, ifPossible) {
		return c.VolumeMounts, nil
	}
	status, err := l.Runtime.Status(ctx, &cri.StatusRequest{})
	if err != nil {
		return nil, connection.Plain(err)
	}
	mode := corev1.RecursiveReadOnlyDisabled
	for _, h := range status.GetRuntimeHandlers() {
		if h.GetName() == pod.Handler() && h.GetFeatures().GetRecursiveReadOnlyMounts() {
			mode = corev1.RecursiveReadOnlyEnabled
		}
	}
	mounts := slices.Clone(c.VolumeMounts)
	for i := range mounts {
		if ifPossible(mounts[i]) {
			mounts[i].RecursiveReadOnly = &mode
		}
	}
	return mounts, nil
}

// Start creates and starts an attempt of a container, the first of which is 0. Where the container has been created and
// its start fails, it is returned beside the error: Settle tells what has become of it.
func (l *Launcher) Start(ctx context.Context, pod *Pod, c *corev1.Container, attempt int) (*Container, error) {
	fail := func(act string, err error) error {
		err = connection.Plain(err)
		if strings.HasPrefix(err.Error(), act+" container "+c.Name) { // the runtime's words say so
			return fmt.Errorf("pod %s: %w", pod.FullName(), err)
		}
		return fmt.Errorf("pod %s: %s container %s: %w", pod.FullName(), act, c.Name, err)
	}
	started := pod.restored[c.Name]
	if attempt > 0 || started == nil {
		var created *cri.CreateContainerResponse
		request, asked, err := l.request(ctx, pod, c, attempt)
		if err == nil {
			created, err = l.create(ctx, request)
		}
		if err != nil {
			return nil, l.forgetRefused(ctx, pod, c.Name, attempt, fail("create", err))
		}
		started = asked
		started.ID = created.GetContainerId()
		if err := l.giveClaims(ctx, pod, c); err != nil {
			return started, fail("create", err)
		}
	}
	if err := l.begin(ctx, started); err != nil {
		return started, fail("start", err)
	}
	l.began(pod, started)
	return started, nil
}

// request asks for an attempt of a container. The container that it makes has everything but its ID.
func (l *Launcher) request(ctx context.Context, pod *Pod, c *corev1.Container, attempt int) (
	*cri.CreateContainerRequest, *Container, error) {
	at, err := l.placement(ctx, pod, c, attempt)
	if err != nil {
		return nil, nil, err
	}
	message, err := pod.dir.MakeMessage(c.Name, attempt)
	if err != nil {
		return nil, nil, err
	}
	at.Mounts = append(at.Mounts,
		&cri.Mount{ContainerPath: manifest.MessagePath(c), HostPath: message, SelinuxRelabel: true})
	config, err := pod.Container(c, at)
	if err != nil {
		return nil, nil, err
	}
	sandbox, err := pod.Sandbox(pod.Host, pod.dir.Logs(), pod.dir.Path)
	if err != nil {
		return nil, nil, err
	}
	request := &cri.CreateContainerRequest{PodSandboxId: pod.SandboxID, Config: config, SandboxConfig: sandbox}
	if l.Repeatable {
		if err := pod.dir.SaveRequest(c.Name, request); err != nil {
			return nil, nil, err
		}
	}
	return request, &Container{Name: c.Name, Kind: pod.Kind(c), Attempt: attempt,
		LogPath: pod.dir.Logs() + "/" + at.LogPath, MessagePath: message}, nil
}

func (l *Launcher) create(ctx context.Context, request *cri.CreateContainerRequest) (*cri.CreateContainerResponse,
	error) {
	if l.Repeatable {
		ctx = metadata.AppendToOutgoingContext(ctx, berthv1.RotateLog, "true")
	}
	if poddir.HasNamed(request.GetConfig().GetMounts()) {
		return l.CreateWithVolumes(ctx, request)
	}
	return l.Runtime.CreateContainer(ctx, request)
}

func (l *Launcher) begin(ctx context.Context, c *Container) error {
	if l.Begin != nil {
		return l.Begin(ctx, c)
	}
	_, err := l.Runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ID})
	return err
}

// forgetRefused removes what the pod's directory has of an attempt whose container was refused, and returns the
// refusal: a container that is tried every few minutes would leave a mount for each of its sub-paths each time. Where
// the container may be there, or may still come, all stays.
func (l *Launcher) forgetRefused(ctx context.Context, pod *Pod, name string, attempt int, refusal error) error {
	switch connection.Code(refusal) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.AlreadyExists:
		return refusal
	}
	containers, err := l.containers(ctx, pod, name)
	if err != nil || slices.ContainsFunc(containers, func(c *cri.Container) bool {
		return int(c.GetMetadata().GetAttempt()) == attempt
	}) {
		return refusal
	}
	if err := pod.dir.Forget(name, attempt); err != nil {
		return errors.Join(refusal, err)
	}
	return refusal
}

// containers are the attempts of a container that are there.
func (l *Launcher) containers(ctx context.Context, pod *Pod, name string) ([]*cri.Container, error) {
	list, err := l.Runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
		PodSandboxId: pod.SandboxID, LabelSelector: map[string]string{manifest.LabelContainerName: name}}})
	if err != nil {
		return nil, connection.Plain(err)
	}
	return list.GetContainers(), nil
}

// Forget removes all attempts of a container but the last that ended before one, which `berth logs -p` shows: a kubelet
// keeps one, too. Of those whose container was never made it removes what is in the pod's directory.
func (l *Launcher) Forget(ctx context.Context, pod *Pod, name string, before int) error {
	containers, err := l.containers(ctx, pod, name)
	if err != nil {
		return err
	}
	for _, c := range containers {
		attempt := int(c.GetMetadata().GetAttempt())
		if attempt >= before-1 {
			continue
		}
		if _, err := l.Runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.GetId()}); err != nil {
			return connection.Plain(err)
		}
		if err := pod.dir.Forget(name, attempt); err != nil {
			return err
		}
	}
	return pod.dir.ForgetBefore(name, before-1)
}

// discard removes what there is of a pod that did not start.
func (l *Launcher) discard(ctx context.Context, pod *Pod) error {
	if pod.SandboxID == "" {
		// A request that failed on its way may have made a sandbox all the same.
		pods, err := podsOf(ctx, l.Runtime)
		if err != nil {
			return err
		}
		for _, other := range pods {
			if other.GetMetadata().GetUid() == string(pod.UID) {
				pod.SandboxID = other.GetId()
			}
		}
	}
	if pod.SandboxID != "" {
		if err := removeSandbox(ctx, l.Runtime, pod.SandboxID); err != nil {
			return err
		}
	}
	if pod.dir == nil {
		return nil
	}
	return pod.dir.Remove()
}
