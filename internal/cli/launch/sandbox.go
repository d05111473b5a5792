package launch

import (
	"context"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/poddir"
	"berth/internal/manifest"
)

// sandbox makes the pod's directory, its volumes and its sandbox.
func (l *Launcher) sandbox(ctx context.Context, pod *Pod) error {
	record := poddir.Record{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}
	if pod.Applied != nil {
		record.Applied = pod.Applied.Directory
	}
	dir, made, err := l.Store.Create(record)
	if err != nil {
		return err
	}
	defer made()
	pod.dir = dir
	if pod.release, err = dir.Hold(); err != nil { // until it is started, or for as long as this command runs it
		return err
	}
	content := func(v *corev1.Volume) (*poddir.Content, error) {
		files, err := pod.VolumeFiles(v, pod.Host)
		return &poddir.Content{Files: files, InMemory: manifest.InMemory(v.VolumeSource)}, err
	}
	pod.volumes, err = dir.MakeVolumes(pod.Spec.Volumes, pod.FSGroup(), pod.MemoryOfVolumes(pod.Host), content)
	if err != nil {
		return err
	}
	addDaemons(pod.volumes, pod.Pod, pod.images)
	if err := l.runSandbox(ctx, pod); err != nil {
		return connection.Plain(err)
	}
	status, err := l.Runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: pod.SandboxID})
	if err != nil {
		return connection.Plain(err)
	}
	pod.IPs = addresses(status.GetStatus())
	return nil
}

// runSandbox makes the sandbox of a pod, and where the pod is restored also its containers. Pods with user namespaces
// are made one after another: a command sees the IDs of those whose sandboxes are there.
func (l *Launcher) runSandbox(ctx context.Context, pod *Pod) error {
	if pod.UserNamespaced() {
		release, err := l.Store.LockIDs(ctx)
		if err != nil {
			return err
		}
		defer release()
		if pod.FirstID, err = l.freeIDs(ctx); err != nil {
			return err
		}
	}
	config, err := pod.Sandbox(pod.Host, pod.dir.Logs(), pod.dir.Path)
	if err != nil {
		return err
	}
	if l.Restore != "" {
		return l.restore(ctx, pod, config)
	}
	made, err := l.Runtime.RunPodSandbox(ctx,
		&cri.RunPodSandboxRequest{Config: config, RuntimeHandler: pod.Handler()})
	pod.SandboxID = made.GetPodSandboxId()
	return err
}

// addDaemons adds the volumes of a pod that the daemon has.
func addDaemons(volumes poddir.Volumes, pod *manifest.Pod, images *images) {
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.Image != nil:
			volumes[v.Name] = poddir.Volume{Image: images.byVolume[v.Name], ReadOnly: true}
		case v.PersistentVolumeClaim != nil:
			volumes[v.Name] = poddir.Volume{Named: manifest.NamedVolume(pod.Namespace, v.PersistentVolumeClaim.ClaimName),
				ReadOnly: v.PersistentVolumeClaim.ReadOnly}
		}
	}
}

// addresses are the IP addresses of a sandbox.
func addresses(status *cri.PodSandboxStatus) []string {
	network := status.GetNetwork()
	if network.GetIp() == "" {
		return nil
	}
	ips := []string{network.GetIp()}
	for _, ip := range network.GetAdditionalIps() {
		ips = append(ips, ip.GetIp())
	}
	return ips
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
		if filepath.Clean(mount.MountPath) == "/etc/hosts" {
			return true
		}
	}
	return false
}
