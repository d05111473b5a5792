package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth/test/node"
)

// story is a namespace of the cluster for one test. It is deleted when the test ends.
type story struct {
	t    *testing.T
	c    *cluster
	name string
}

var stories atomic.Int32

func tell(t *testing.T) *story {
	t.Helper()
	s := &story{t: t, c: shared, name: fmt.Sprintf("story-%d", stories.Add(1))}
	s.kubectl("", "create", "namespace", s.name)
	s.eventually(time.Minute, "the namespace has its service account", func() error {
		_, err := s.try("", "get", "serviceaccount", "default")
		return err
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), node.Patience(3*time.Minute))
		defer cancel()
		if t.Failed() {
			for _, args := range [][]string{
				{"get", "nodes,pods,deployments,endpointslices,persistentvolumeclaims", "-o", "wide"},
				{"describe", "pods"}, {"get", "events"},
			} {
				out, err := s.c.kubectl(ctx, "", append([]string{"-n", s.name}, args...)...)
				t.Logf("kubectl %s (%v):\n%s", strings.Join(args, " "), err, out)
			}
			for _, m := range s.c.nodes {
				t.Log(m.tails())
			}
		}
		if _, err := s.c.kubectl(ctx, "", "delete", "namespace", s.name); err != nil {
			t.Error(err)
		}
	})
	return s
}

// try runs kubectl in the story's namespace.
func (s *story) try(stdin string, args ...string) (string, error) {
	out, err := s.c.kubectl(s.t.Context(), stdin, append([]string{"-n", s.name}, args...)...)
	return strings.TrimSpace(out), err
}

// kubectl is try that must succeed.
func (s *story) kubectl(stdin string, args ...string) string {
	s.t.Helper()
	out, err := s.try(stdin, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

func (s *story) apply(manifest string) {
	s.t.Helper()
	s.kubectl(manifest, "apply", "-f", "-")
}

// rolledOut waits until a Deployment, DaemonSet or StatefulSet is as its specification says.
func (s *story) rolledOut(what string) {
	s.t.Helper()
	s.kubectl("", "rollout", "status", what, fmt.Sprintf("--timeout=%v", node.Patience(2*time.Minute)))
}

func (s *story) eventually(d time.Duration, claim string, try func() error) {
	s.t.Helper()
	if err := within(d, claim, try); err != nil {
		s.t.Fatal(err)
	}
}

// pod is what stories look at of a pod.
type pod struct {
	Metadata struct {
		Name, UID         string
		DeletionTimestamp string
	}
	Spec   struct{ NodeName string }
	Status struct {
		Phase, PodIP      string
		ContainerStatuses []struct {
			Name         string
			Ready        bool
			RestartCount int
			ContainerID  string
		}
	}
}

// ready says whether all containers of the pod are ready.
func (p pod) ready() bool {
	for _, status := range p.Status.ContainerStatuses {
		if !status.Ready {
			return false
		}
	}
	return len(p.Status.ContainerStatuses) > 0 && p.Metadata.DeletionTimestamp == ""
}

// pods are those with the label app=name.
func (s *story) pods(name string) []pod {
	s.t.Helper()
	out, err := s.try("", "get", "pods", "-l", "app="+name, "-o", "json")
	if err != nil {
		s.t.Fatal(err)
	}
	var list struct{ Items []pod }
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		s.t.Fatal(err)
	}
	return list.Items
}

// sh runs a shell's line in the first container of a pod.
func (s *story) sh(name, line string) (string, error) {
	return s.try("", "exec", name, "--", "sh", "-c", line)
}

// server is a container that answers on port 8080: /hostname, /clientip and the other paths of agnhost's netexec.
const server = `
      terminationGracePeriodSeconds: 10
      containers:
      - name: server
        image: ` + agnhost + `
        args: [netexec, --http-port=8080]
        readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1, timeoutSeconds: 5}
        # Long enough for every node's proxy to know that the pod is on its way out.
        lifecycle: {preStop: {sleep: {seconds: 5}}}
`

// workload is the head of the manifest of a controller whose pods have the label app=name; rest is its spec's further
// keys.
func workload(kind, name, rest, podSpec string) string {
	return fmt.Sprintf(`
---
apiVersion: apps/v1
kind: %s
metadata: {name: %s}
spec:
  selector: {matchLabels: {app: %[2]s}}
  %[3]s
  template:
    metadata: {labels: {app: %[2]s}}
    spec:%[4]s`, kind, name, rest, podSpec)
}

// service is a Service for the pods with the label app=name; rest is its spec's further keys.
func service(name, rest string) string {
	return fmt.Sprintf(`
---
apiVersion: v1
kind: Service
metadata: {name: %s}
spec:
  selector: {app: %[1]s}
  ports: [{port: 80, targetPort: 8080}]
  %s
`, name, rest)
}
