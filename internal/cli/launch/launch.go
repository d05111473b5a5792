package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

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
	Host    *manifest.Host
	Watch   *Watch
	// Pull pulls an image and returns its reference for a container.
	Pull func(ctx context.Context, image string) (string, error)
	// Started is told of each container as it is started, before anything waits for it.
	Started func(*Pod, *Container)
}

// Container is a container that runs or has run.
type Container struct {
	Name    string
	ID      string
	Kind    string // manifest.KindInit, manifest.KindSidecar or nothing
	LogPath string // absolute
}

// Pod is a pod that runs.
type Pod struct {
	*manifest.Pod
	SandboxID  string
	IPs        []string
	Containers []*Container // in the order in which they were started
	dir        *poddir.Dir
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

// Existing lists the sandboxes that bear a pod's namespace and name.
func (l *Launcher) Existing(ctx context.Context, pod *manifest.Pod) ([]*cri.PodSandbox, error) {
	pods, err := lookup.Pods(ctx, l.Runtime)
	if err != nil {
		return nil, err
	}
	var same []*cri.PodSandbox
	for _, other := range pods {
		if lookup.PodName(other) == pod.FullName() {
			same = append(same, other)
		}
	}
	return same, nil
}

// Run runs a pod and returns once all its containers are started. A pod that cannot be started is removed again.
func (l *Launcher) Run(ctx context.Context, pod *manifest.Pod) (*Pod, error) {
	images, err := l.images(ctx, pod)
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", pod.FullName(), err)
	}
	running := &Pod{Pod: pod}
	if err := l.run(ctx, running, images); err != nil {
		// The caller's context may be what ended the start.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return nil, errors.Join(err, l.discard(undo, running))
	}
	return running, nil
}

// images makes sure that the node has the pod's images, and returns what each container's is called there.
func (l *Launcher) images(ctx context.Context, pod *manifest.Pod) (map[string]string, error) {
	have, byContainer := map[string]*cri.Image{}, map[string]string{}
	for c := range pod.Containers() {
		image := have[c.Image]
		if image == nil {
			var err error
			if image, err = l.image(ctx, c); err != nil {
				return nil, fmt.Errorf("container %s: image %s: %w", c.Name, c.Image, err)
			}
			have[c.Image] = image
		}
		if err := pod.CheckNonRoot(c, image); err != nil {
			return nil, err
		}
		byContainer[c.Name] = image.GetId()
	}
	return byContainer, nil
}

func (l *Launcher) image(ctx context.Context, c *corev1.Container) (*cri.Image, error) {
	if filepath.IsAbs(c.Image) {
		return &cri.Image{Id: c.Image}, nil // the archive of a checkpoint, on the runtime's machine
	}
	status := func(ref string) (*cri.Image, error) {
		response, err := l.Images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})
		return response.GetImage(), connection.Plain(err)
	}
	if c.ImagePullPolicy != corev1.PullAlways {
		image, err := status(c.Image)
		if err != nil || image != nil {
			return image, err
		}
		if c.ImagePullPolicy == corev1.PullNever {
			return nil, fmt.Errorf("the image is not on the node, and imagePullPolicy is Never: pull it with `berth pull %s`",
				c.Image)
		}
	}
	ref, err := l.Pull(ctx, c.Image)
	if err != nil {
		return nil, err
	}
	image, err := status(ref)
	if err == nil && image == nil {
		err = errors.New("the image was removed right after it was pulled")
	}
	return image, err
}

func (l *Launcher) run(ctx context.Context, pod *Pod, images map[string]string) error {
	volumes, err := l.sandbox(ctx, pod)
	if err != nil {
		return fmt.Errorf("pod %s: %w", pod.FullName(), err)
	}
	hosts, err := l.hosts(pod)
	if err != nil {
		return fmt.Errorf("pod %s: hosts file: %w", pod.FullName(), err)
	}
	for c := range pod.Pod.Containers() {
		at := &manifest.Placement{Host: l.Host, ImageID: images[c.Name]}
		if at.Env, err = pod.Environment(c, l.Host, pod.IPs); err != nil {
			return fmt.Errorf("pod %s: %w", pod.FullName(), err)
		}
		if at.Mounts, err = pod.dir.Mounts(c.Name, c.VolumeMounts, volumes, at.Env.Expand); err != nil {
			return fmt.Errorf("pod %s: %w", pod.FullName(), err)
		}
		if hosts != nil && !mountsHosts(c) {
			at.Mounts = append(at.Mounts, hosts)
		}
		if err := l.container(ctx, pod, c, at); err != nil {
			return err
		}
	}
	return nil
}

// sandbox makes the pod's directory, its volumes and its sandbox.
func (l *Launcher) sandbox(ctx context.Context, pod *Pod) (poddir.Volumes, error) {
	dir, made, err := l.Store.Create(poddir.Record{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)})
	if err != nil {
		return nil, err
	}
	defer made()
	pod.dir = dir
	var group *int64
	if g, ok := pod.FSGroup(); ok {
		group = &g
	}
	volumes, err := dir.MakeVolumes(pod.Spec.Volumes, group)
	if err != nil {
		return nil, err
	}
	config, err := pod.Sandbox(l.Host, dir.Logs(), dir.Path)
	if err != nil {
		return nil, err
	}
	response, err := l.Runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: pod.Handler()})
	if err != nil {
		return nil, connection.Plain(err)
	}
	pod.SandboxID = response.GetPodSandboxId()
	status, err := l.Runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: pod.SandboxID})
	if err != nil {
		return nil, connection.Plain(err)
	}
	if network := status.GetStatus().GetNetwork(); network.GetIp() != "" {
		pod.IPs = []string{network.GetIp()}
		for _, ip := range network.GetAdditionalIps() {
			pod.IPs = append(pod.IPs, ip.GetIp())
		}
	}
	return volumes, nil
}

// hosts is the mount of the pod's own hosts file; nil where it needs none.
func (l *Launcher) hosts(pod *Pod) (*cri.Mount, error) {
	if len(pod.Spec.HostAliases) == 0 {
		return nil, nil
	}
	node, err := os.ReadFile("/etc/hosts")
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return pod.dir.WriteHosts(pod.HostsFile(pod.IPs, node))
}

func mountsHosts(c *corev1.Container) bool {
	for _, mount := range c.VolumeMounts {
		if mount.MountPath == "/etc/hosts" {
			return true
		}
	}
	return false
}

// container creates and starts a container, and waits for it where it is an init container.
func (l *Launcher) container(ctx context.Context, pod *Pod, c *corev1.Container, at *manifest.Placement) error {
	fail := func(act string, err error) error {
		err = connection.Plain(err)
		if strings.HasPrefix(err.Error(), act+" container "+c.Name) { // the runtime's words say so
			return fmt.Errorf("pod %s: %w", pod.FullName(), err)
		}
		return fmt.Errorf("pod %s: %s container %s: %w", pod.FullName(), act, c.Name, err)
	}
	var err error
	if at.LogPath, err = pod.dir.MakeLog(c.Name, 0); err != nil {
		return fail("create", err)
	}
	config, err := pod.Container(c, at)
	if err != nil {
		return fail("create", err)
	}
	sandbox, err := pod.Sandbox(l.Host, pod.dir.Logs(), pod.dir.Path)
	if err != nil {
		return fail("create", err)
	}
	created, err := l.Runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: pod.SandboxID, Config: config, SandboxConfig: sandbox,
	})
	if err != nil {
		return fail("create", err)
	}
	started := &Container{
		Name: c.Name, ID: created.GetContainerId(), Kind: pod.Kind(c), LogPath: pod.dir.Logs() + "/" + at.LogPath,
	}
	if _, err := l.Runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: started.ID}); err != nil {
		return fail("start", err)
	}
	pod.Containers = append(pod.Containers, started)
	if l.Started != nil {
		l.Started(pod, started)
	}
	if started.Kind != manifest.KindInit {
		return nil
	}
	status, err := l.Watch.Exited(ctx, started.ID)
	if err != nil {
		return fail("wait for", err)
	}
	if status.GetExitCode() != 0 {
		return &InitError{Pod: pod.FullName(), Container: started, Status: status}
	}
	return nil
}

// discard removes what there is of a pod that did not start.
func (l *Launcher) discard(ctx context.Context, pod *Pod) error {
	if pod.SandboxID == "" {
		// A request that failed on its way may have made a sandbox all the same.
		pods, err := lookup.Pods(ctx, l.Runtime)
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
