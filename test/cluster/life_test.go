package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/test/node"
)

// spread is a Deployment with two pods on each node, as far as that is possible, and a Service with node ports.
func spread(name string) string {
	return workload("Deployment", name, fmt.Sprintf("replicas: %d", 2*nodeCount), "\n      topologySpreadConstraints:\n"+
		"      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, "+
		"labelSelector: {matchLabels: {app: "+name+"}}}"+server) + service(name, "type: NodePort")
}

// drain has all pods of the node but those of DaemonSets go elsewhere.
func (s *story) drain(m *member) {
	s.t.Helper()
	s.kubectl("", "drain", m.name, "--ignore-daemonsets", "--delete-emptydir-data", "--force",
		fmt.Sprintf("--timeout=%v", node.Patience(3*time.Minute)))
}

// on are the pods that are on a node.
func on(pods []pod, m *member) []pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p pod) bool { return p.Spec.NodeName != m.name })
}

// TestANodeIsDrainedUnderLoad drains each node in turn while clients ask on the node ports of all: none is refused, and
// pods of a DaemonSet stay.
func TestANodeIsDrainedUnderLoad(t *testing.T) {
	s := tell(t)
	s.apply(spread("web") + workload("DaemonSet", "each", "", server) + `
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}
`)
	s.rolledOut("deployment/web")
	s.rolledOut("daemonset/each")
	l := s.c.startLoad(4, "/hostname", s.nodePorts("web")...)
	for _, m := range s.c.nodes {
		s.drain(m)
		if left := on(s.pods("web"), m); len(left) > 0 {
			t.Errorf("%d pods are on %s, which is drained", len(left), m.name)
		}
		if left := on(s.pods("each"), m); len(left) != 1 {
			t.Errorf("%s has %d pods of the DaemonSet", m.name, len(left))
		}
		s.rolledOut("deployment/web")
		s.kubectl("", "uncordon", m.name)
	}
	l.end(t)
}

// TestARebootedNodeComesBack ends a node's every process and namespace without a word, and boots it: the pods that
// belong to it run again, with their volumes.
func TestARebootedNodeComesBack(t *testing.T) {
	s := tell(t)
	s.apply(s.stateful("db") + workload("DaemonSet", "each", "", server))
	s.rolledOut("statefulset/db")
	s.rolledOut("daemonset/each")
	for i := range nodeCount {
		if _, err := s.sh(fmt.Sprintf("db-%d", i), fmt.Sprintf("echo %d > /data/mine", i)); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range s.c.nodes {
		if err := m.host.End(); err != nil {
			t.Fatal(err)
		}
		before := append(on(s.pods("db"), m), on(s.pods("each"), m)...)
		if err := m.boot(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, old := range before {
			s.eventually(3*time.Minute, "pod "+old.Metadata.Name+" runs again on "+m.name, func() error {
				all := append(s.pods("db"), s.pods("each")...)
				i := slices.IndexFunc(all, func(p pod) bool { return p.Metadata.Name == old.Metadata.Name })
				if i < 0 {
					return errors.New("it is not there")
				}
				before := old.Status.ContainerStatuses[0].ContainerID
				if !all[i].ready() || all[i].Status.ContainerStatuses[0].ContainerID == before {
					return fmt.Errorf("%+v", all[i].Status)
				}
				return nil
			})
		}
	}
	for i := range nodeCount {
		if got, err := s.sh(fmt.Sprintf("db-%d", i), "cat /data/mine"); err != nil || got != fmt.Sprint(i) {
			t.Errorf("db-%d finds %q in its volume, not %d (%v)", i, got, i, err)
		}
	}
	s.reach("each")
}

// reach has the pods of a DaemonSet reach each other.
func (s *story) reach(name string) {
	s.t.Helper()
	pods := s.pods(name)
	for _, from := range pods {
		for _, to := range pods {
			s.eventually(time.Minute, "the pod on "+from.Spec.NodeName+" reaches that on "+to.Spec.NodeName, func() error {
				_, err := s.sh(from.Metadata.Name, "timeout 10 wget -qO- http://"+to.Status.PodIP+":8080/hostname")
				return err
			})
		}
	}
}

// TestBerthIsUpgradedUnderLoad installs another version of Berth on each node in turn, reloads the keeper and restarts
// the daemon, as an upgrade of a package does, while clients ask the node's pods: no request fails, no container is
// restarted, and the logs go on.
func TestBerthIsUpgradedUnderLoad(t *testing.T) {
	newer := buildVersion(t, "v99.0.0")
	s := tell(t)
	s.apply(spread("web") + workload("Deployment", "ticks", "replicas: 3", "\n      terminationGracePeriodSeconds: 1\n"+
		"      topologySpreadConstraints:\n      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, "+
		"whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: ticks}}}\n"+
		"      containers:\n      - {name: main, image: "+agnhost+
		", command: [sh, -c, 'i=0; while :; do echo tick $i; i=$((i+1)); sleep 0.1; done']}\n"))
	s.rolledOut("deployment/web")
	s.rolledOut("deployment/ticks")
	before := append(s.pods("web"), s.pods("ticks")...)
	l := s.c.startLoad(6, "/hostname", s.nodePorts("web")...)
	for _, m := range s.c.nodes {
		if err := m.upgrade(t.Context(), newer); err != nil {
			t.Fatalf("upgrade %s: %v\n%s", m.name, err, m.tails())
		}
	}
	// Long enough for a kubelet that lost its runtime to say so, and for pods of a node that is not ready to be taken out
	// of the Service.
	time.Sleep(15 * time.Second)
	l.end(t)
	for _, m := range s.c.nodes {
		s.eventually(time.Minute, m.name+" says its version", func() error {
			got, err := s.try("", "get", "node", m.name, "-o", "jsonpath={.status.nodeInfo.containerRuntimeVersion}")
			if err == nil && !strings.Contains(got, "99.0.0") {
				err = fmt.Errorf("it says %s", got)
			}
			return err
		})
	}
	after := append(s.pods("web"), s.pods("ticks")...)
	for _, old := range before {
		i := slices.IndexFunc(after, func(p pod) bool { return p.Metadata.UID == old.Metadata.UID })
		if i < 0 {
			t.Errorf("pod %s is gone", old.Metadata.Name)
		} else if now := after[i].Status.ContainerStatuses[0]; now.RestartCount != 0 || !now.Ready {
			t.Errorf("pod %s: %+v", old.Metadata.Name, now)
		}
	}
	for _, p := range s.pods("ticks") {
		for i, line := range strings.Split(s.kubectl("", "logs", p.Metadata.Name), "\n") {
			if line != fmt.Sprintf("tick %d", i) {
				t.Errorf("line %d of %s's log is %q", i, p.Metadata.Name, line)
				break
			}
		}
		if _, err := s.sh(p.Metadata.Name, "true"); err != nil {
			t.Error(err)
		}
	}
}

// buildVersion builds Berth's programs as another version.
func buildVersion(t *testing.T, version string) string {
	t.Helper()
	root, err := node.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if out, err := exec.Command(filepath.Join(root, "packaging", "build.sh"), dir, version).CombinedOutput(); err != nil {
		t.Fatalf("build another version: %v\n%s", err, out)
	}
	return dir
}

// install puts Berth's programs on the node, each in one step, as a package manager does. What runs goes on with the
// old one.
func (m *member) install(from string) error {
	dir := filepath.Join(m.dir, "programs")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"berthd", "berth-keeper", "berth-unpack", "berth"} {
		data, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name+".new"), data, 0o755); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(dir, name+".new"), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// upgrade does what docs/operations.md says of an upgrade.
func (m *member) upgrade(ctx context.Context, programs string) error {
	if err := m.install(programs); err != nil {
		return err
	}
	if _, err := m.host.Run(ctx, "sh", "-c", "kill -HUP $(pidof berth-keeper)"); err != nil {
		return err
	}
	if err := m.berthd.Stop(ctx, "TERM"); err != nil {
		return err
	}
	if err := m.startBerth(ctx); err != nil {
		return err
	}
	return within(time.Minute, "the keeper is the new one", func() error {
		for _, name := range []string{"berth-keeper", "berthd"} {
			compare := fmt.Sprintf("cmp /proc/$(pidof %s)/exe %s/%[1]s", name, berthPrograms)
			if _, err := m.host.Run(ctx, "sh", "-c", compare); err != nil {
				return err
			}
		}
		return nil
	})
}
