package listing

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
	"berth/internal/manifest"
)

// Pod is a pod in lists.
type Pod struct {
	ID          string            `json:"id"`
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace"`
	UID         string            `json:"uid"`
	State       string            `json:"state"` // running, paused, succeeded, failed, created or stopped
	IPs         []string          `json:"ips,omitempty"`
	Ports       []string          `json:"ports,omitempty"` // 8080->80/tcp
	Running     int               `json:"running"`         // containers
	Containers  int               `json:"containers"`      // but init containers
	CreatedAt   time.Time         `json:"createdAt"`
	Handler     string            `json:"handler,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`

	Display string `json:"-"` // as tables name it
}

// Pods lists the selected pods.
func Pods(ctx context.Context, conn *connection.Connection, chosen *lookup.Selection) ([]Pod, error) {
	reading, err := Read(ctx, conn)
	if err != nil {
		return nil, err
	}
	return reading.Pods(ctx, chosen.Pod)
}

// Pods are the pods of a reading that are wanted; nil wants all.
func (r *Reading) Pods(ctx context.Context, wanted func(*cri.PodSandbox) bool) ([]Pod, error) {
	containers := map[string][]*lookup.Container{} // the newest of each name but init containers, by pod
	for _, c := range r.containers {
		if c.Annotations[manifest.AnnotationKind] != manifest.KindInit {
			containers[c.PodSandboxId] = append(containers[c.PodSandboxId], c)
		}
	}
	var rows []Pod
	for _, pod := range r.pods {
		if wanted != nil && !wanted(pod) {
			continue
		}
		row := Pod{
			ID: pod.Id, Name: pod.GetMetadata().GetName(), Namespace: pod.GetMetadata().GetNamespace(),
			UID: pod.GetMetadata().GetUid(), CreatedAt: time.Unix(0, pod.GetCreatedAt()),
			Handler: pod.GetRuntimeHandler(), Labels: pod.GetLabels(), Annotations: pod.GetAnnotations(),
			Display: lookup.ShortPodName(pod),
		}
		status, err := r.conn.Runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: pod.Id})
		if gone(err) {
			continue
		}
		if err != nil {
			return nil, connection.Plain(err)
		}
		row.IPs = addresses(status.GetStatus().GetNetwork())
		own := lookup.Latest(containers[pod.Id])
		if row.State, err = r.podState(ctx, pod, own); err != nil {
			return nil, err
		}
		for _, c := range own {
			row.Containers++
			if c.State == cri.ContainerState_CONTAINER_RUNNING {
				row.Running++
			}
			row.Ports = append(row.Ports, ports(c.Annotations[manifest.AnnotationPorts])...)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func addresses(network *cri.PodSandboxNetworkStatus) []string {
	if network.GetIp() == "" {
		return nil
	}
	ips := []string{network.GetIp()}
	for _, ip := range network.GetAdditionalIps() {
		ips = append(ips, ip.GetIp())
	}
	return ips
}

// PodState is the phase of a pod, by the newest containers of each name that is not of an init container.
func PodState(ctx context.Context, conn *connection.Connection, pod *cri.PodSandbox,
	own []*lookup.Container) (string, error) {
	r := &Reading{conn: conn, statuses: map[string]*cri.ContainerStatus{}}
	return r.podState(ctx, pod, own)
}

// podState is the phase of a pod as Kubernetes' clients show it, by the newest containers of each name: succeeded or
// failed once all but the sidecars have ended, paused where nothing runs that is not paused.
func (r *Reading) podState(ctx context.Context, pod *cri.PodSandbox, own []*lookup.Container) (string, error) {
	ready := pod.GetState() == cri.PodSandboxState_SANDBOX_READY
	running, paused, ended, failed, waiting := 0, 0, 0, 0, 0
	for _, c := range own {
		sidecar := c.Annotations[manifest.AnnotationKind] == manifest.KindSidecar
		if c.State == cri.ContainerState_CONTAINER_CREATED {
			waiting++
			continue
		}
		if sidecar && c.State != cri.ContainerState_CONTAINER_RUNNING {
			continue
		}
		status, err := r.Status(ctx, c.Id)
		if err != nil {
			return "", err
		}
		switch {
		case status == nil:
		case status.GetState() == cri.ContainerState_CONTAINER_RUNNING && status.GetReason() == reasonPaused:
			paused++
		case sidecar:
		case status.GetState() == cri.ContainerState_CONTAINER_RUNNING:
			running++
		default:
			ended++
			if status.GetExitCode() != 0 {
				failed++
			}
		}
	}
	switch {
	case running > 0:
		return "running", nil
	case paused > 0:
		return "paused", nil
	case ready && waiting > 0:
		return "created", nil
	case failed > 0:
		return "failed", nil
	case ended > 0 && waiting == 0:
		return "succeeded", nil
	case ready:
		return "ready", nil // no container has been made
	}
	return "stopped", nil
}

// ports words the annotation that a kubelet and `berth run` leave on a container.
func ports(annotation string) []string {
	var list []corev1.ContainerPort
	if annotation == "" || json.Unmarshal([]byte(annotation), &list) != nil {
		return nil
	}
	var words []string
	for _, port := range list {
		text := fmt.Sprintf("%d/%s", port.ContainerPort, strings.ToLower(string(port.Protocol)))
		if port.HostPort > 0 {
			text = fmt.Sprintf("%d->%s", port.HostPort, text)
			if port.HostIP != "" {
				text = port.HostIP + ":" + text
			}
		}
		words = append(words, text)
	}
	return words
}
