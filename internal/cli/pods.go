package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
	"berth/internal/cli/table"
	"berth/internal/manifest"
)

// podRow is a pod in lists.
type podRow struct {
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

	display string
}

func (a *app) podsCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "pods", Short: "List pods"}
	chosen := selection(cmd, cobra.NoArgs)
	rows := func(ctx context.Context, conn *connection.Connection, _ []string) ([]podRow, error) {
		return podRows(ctx, conn, chosen)
	}
	return listCommand(a, cmd, rows,
		table.List[podRow]{Name: podRow.name, ID: podRow.id, Columns: []table.Column[podRow]{
			{Title: "POD", Value: func(r podRow) string { return r.display }},
			{Title: "STATE", Value: func(r podRow) string { return r.State }},
			{Title: "RUNNING", Value: func(r podRow) string { return fmt.Sprintf("%d/%d", r.Running, r.Containers) },
				Order: func(a, b podRow) int { return cmp.Compare(a.Running, b.Running) }},
			{Title: "IP", Value: func(r podRow) string { return strings.Join(r.IPs, ",") }},
			{Title: "PORTS", Value: func(r podRow) string { return strings.Join(r.Ports, ", ") }},
			{Title: "AGE", Value: func(r podRow) string { return table.Age(time.Since(r.CreatedAt)) },
				Order: func(a, b podRow) int { return b.CreatedAt.Compare(a.CreatedAt) }},
			{Title: "ID", Value: func(r podRow) string { return table.ShortID(r.ID) }},
			{Title: "HANDLER", Wide: true, Value: func(r podRow) string { return r.Handler }},
			{Title: "UID", Wide: true, Value: func(r podRow) string { return r.UID }},
		}})
}

func (r podRow) name() string { return r.display }
func (r podRow) id() string   { return r.ID }

func podRows(ctx context.Context, conn *connection.Connection, chosen *lookup.Selection) ([]podRow, error) {
	pods, err := lookup.Pods(ctx, conn.Runtime)
	if err != nil {
		return nil, err
	}
	all, err := lookup.Containers(ctx, conn.Runtime, nil)
	if err != nil {
		return nil, err
	}
	containers := map[string][]*lookup.Container{} // the newest of each name but init containers, by pod
	for _, c := range all {
		if c.Annotations[manifest.AnnotationKind] != manifest.KindInit {
			containers[c.PodSandboxId] = append(containers[c.PodSandboxId], c)
		}
	}
	var rows []podRow
	for _, pod := range pods {
		if !chosen.Pod(pod) {
			continue
		}
		row := podRow{
			ID: pod.Id, Name: pod.GetMetadata().GetName(), Namespace: pod.GetMetadata().GetNamespace(),
			UID: pod.GetMetadata().GetUid(), CreatedAt: time.Unix(0, pod.GetCreatedAt()),
			Handler: pod.GetRuntimeHandler(), Labels: pod.GetLabels(), Annotations: pod.GetAnnotations(),
			display: lookup.ShortPodName(pod),
		}
		status, err := conn.Runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: pod.Id})
		if isGone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		row.IPs = addresses(status.GetStatus().GetNetwork())
		own := lookup.Latest(containers[pod.Id])
		if row.State, err = podState(ctx, conn, pod, own); err != nil {
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

// podState is the phase of a pod as Kubernetes' clients show it, by the newest containers of each name: succeeded or
// failed once all but the sidecars have ended, paused where nothing runs that is not paused.
func podState(ctx context.Context, conn *connection.Connection, pod *cri.PodSandbox,
	own []*lookup.Container) (string, error) {
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
		response, err := conn.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.Id})
		if isGone(err) {
			continue
		}
		if err != nil {
			return "", err
		}
		status := response.GetStatus()
		switch {
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

// isGone says whether what was asked for went away since it was listed.
func isGone(err error) bool { return connection.Code(err) == codes.NotFound }
