package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestADeploymentRollsUnderLoad changes a Deployment's pods, twice, and takes it back, while clients ask them: none is
// refused.
func TestADeploymentRollsUnderLoad(t *testing.T) {
	s := tell(t)
	// The pods' environment is what changes.
	manifest := func(version string) string {
		return workload("Deployment", "rolls", "replicas: 4\n  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 2}}",
			server+"        env: [{name: VERSION, value: "+version+"}]\n") + service("rolls", "type: NodePort")
	}
	s.apply(manifest("one"))
	s.rolledOut("deployment/rolls")
	l := s.c.startLoad(4, "/hostname", s.nodePorts("rolls")...)
	version := func(want string) {
		t.Helper()
		s.rolledOut("deployment/rolls")
		for _, p := range s.pods("rolls") {
			if p.Metadata.DeletionTimestamp != "" {
				continue
			}
			if got, err := s.sh(p.Metadata.Name, "echo $VERSION"); err != nil || got != want {
				t.Errorf("pod %s is of version %q, not %q (%v)", p.Metadata.Name, got, want, err)
			}
		}
	}
	for _, next := range []string{"two", "three"} {
		s.apply(manifest(next))
		version(next)
	}
	s.kubectl("", "rollout", "undo", "deployment/rolls")
	version("two")
	l.end(t)
}

// nodePorts are the addresses that a Service answers on, one for each node.
func (s *story) nodePorts(name string) []string {
	s.t.Helper()
	port := s.kubectl("", "get", "service", name, "-o", "jsonpath={.spec.ports[0].nodePort}")
	var all []string
	for _, m := range s.c.nodes {
		all = append(all, m.address+":"+port)
		// The first request is not for the node's proxy to miss.
		s.eventually(time.Minute, "node port "+all[len(all)-1]+" answers", func() error {
			_, err := s.c.get(s.t.Context(), m.address+":"+port, "/hostname")
			return err
		})
	}
	return all
}

// volumes are local volumes, one on each node, of the storage class of the same name as the story.
func (s *story) volumes() string {
	text := fmt.Sprintf(`
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %s}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
`, s.name)
	for _, m := range s.c.nodes {
		text += fmt.Sprintf(`
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s-%[2]s}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: %[1]s
  persistentVolumeReclaimPolicy: Retain
  local: {path: /srv/volumes/%[1]s}
  nodeAffinity:
    required:
      nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%[2]s]}]}]
`, s.name, m.name)
		if _, err := m.host.Run(s.t.Context(), "mkdir", "-p", "/srv/volumes/"+s.name); err != nil {
			s.t.Fatal(err)
		}
	}
	s.t.Cleanup(func() {
		for _, m := range s.c.nodes {
			_, err := s.c.kubectl(context.Background(), "", "delete", "persistentvolume", s.name+"-"+m.name, "--wait=false")
			if err != nil {
				s.t.Error(err)
			}
		}
	})
	return text
}

// stateful is a StatefulSet of one pod on each node, with a volume of its own.
func (s *story) stateful(name string) string {
	return s.volumes() + service(name, "clusterIP: None") +
		workload("StatefulSet", name, fmt.Sprintf("replicas: %d\n  serviceName: %s\n  volumeClaimTemplates: "+
			"[{metadata: {name: data}, spec: {storageClassName: %s, accessModes: [ReadWriteOnce], "+
			"resources: {requests: {storage: 1Gi}}}}]", nodeCount, name, s.name),
			server+"        volumeMounts: [{name: data, mountPath: /data}]\n")
}

// TestAStatefulSetKeepsItsVolumes has pods write to volumes, and find that again, and their names, after they are
// replaced.
func TestAStatefulSetKeepsItsVolumes(t *testing.T) {
	s := tell(t)
	s.apply(s.stateful("db"))
	s.rolledOut("statefulset/db")
	for i := range nodeCount {
		if _, err := s.sh(fmt.Sprintf("db-%d", i), fmt.Sprintf("echo %d > /data/mine", i)); err != nil {
			t.Fatal(err)
		}
	}
	before := s.pods("db")
	s.kubectl("", "rollout", "restart", "statefulset/db")
	s.rolledOut("statefulset/db")
	for i, p := range s.pods("db") {
		if slices.ContainsFunc(before, func(old pod) bool { return old.Metadata.UID == p.Metadata.UID }) {
			t.Errorf("pod %s is the one from before", p.Metadata.Name)
		}
		name := fmt.Sprintf("db-%d", i)
		if got, err := s.sh(name, "cat /data/mine"); err != nil || got != fmt.Sprint(i) {
			t.Errorf("%s finds %q in its volume, not %d (%v)", name, got, i, err)
		}
		s.eventually(time.Minute, "db-0 finds "+name+" by its name", func() error {
			got, err := s.sh("db-0", "timeout 10 wget -qO- http://"+name+".db:8080/hostname")
			if err == nil && got != name {
				err = fmt.Errorf("%q answers", got)
			}
			return err
		})
	}
}

// TestJobsEnd has a Job whose pods fail first, and a CronJob that runs.
func TestJobsEnd(t *testing.T) {
	t.Parallel()
	s := tell(t)
	// Each index fails once: what the first pod of it wrote is on no volume, so the count of failures is what says so.
	s.apply(`
apiVersion: batch/v1
kind: Job
metadata: {name: sums}
spec:
  completions: 4
  parallelism: 2
  completionMode: Indexed
  backoffLimit: 8
  template:
    metadata: {labels: {app: sums}}
    spec:
      restartPolicy: OnFailure
      terminationGracePeriodSeconds: 1
      volumes: [{name: kept, emptyDir: {}}]
      containers:
      - name: sum
        image: ` + agnhost + `
        command:
        - sh
        - -c
        - "if [ -e /kept/tried ]; then echo index $JOB_COMPLETION_INDEX; else touch /kept/tried; exit 3; fi"
        volumeMounts: [{name: kept, mountPath: /kept}]
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: clock}
spec:
  schedule: "* * * * *"
  successfulJobsHistoryLimit: 1
  jobTemplate:
    spec:
      template:
        metadata: {labels: {app: clock}}
        spec:
          restartPolicy: Never
          containers: [{name: clock, image: ` + agnhost + `, command: [date, +ticked]}]
`)
	s.kubectl("", "wait", "job/sums", "--for=condition=Complete", "--timeout=3m")
	for _, p := range s.pods("sums") {
		if status := p.Status.ContainerStatuses[0]; status.RestartCount != 1 {
			t.Errorf("pod %s was restarted %d times, not once", p.Metadata.Name, status.RestartCount)
		}
	}
	if out := s.kubectl("", "logs", "-l", "app=sums", "--tail=-1"); strings.Count(out, "index ") != 4 {
		t.Errorf("the Job's pods said: %s", out)
	}
	s.eventually(3*time.Minute, "the CronJob has run", func() error {
		out, err := s.try("", "logs", "-l", "app=clock")
		if err == nil && !strings.Contains(out, "ticked") {
			err = fmt.Errorf("its pods said %q", out)
		}
		return err
	})
}

// TestProbesAreActedOn has a container that is not live restart, one that is not ready get no requests, and one that
// starts slowly be left alone until it has started.
func TestProbesAreActedOn(t *testing.T) {
	t.Parallel()
	s := tell(t)
	probe := func(kind, file string) string {
		return "        " + kind + ": {exec: {command: [test, -e, " + file +
			"]}, periodSeconds: 1, failureThreshold: 30, timeoutSeconds: 10}\n"
	}
	shell := func(script string) string {
		return "\n      terminationGracePeriodSeconds: 1\n      containers:\n      - name: main\n        image: " + agnhost +
			"\n        command: [sh, -c, \"" + script + "; while :; do sleep 1; done\"]\n"
	}
	s.apply(workload("Deployment", "live", "", shell("touch /tmp-live")+
		strings.Replace(probe("livenessProbe", "/tmp-live"), "failureThreshold: 30", "failureThreshold: 2", 1)) +
		workload("Deployment", "slow", "", shell("sleep 6; touch /started")+probe("startupProbe", "/started")+
			strings.Replace(probe("livenessProbe", "/started"), "failureThreshold: 30", "failureThreshold: 1", 1)) +
		workload("Deployment", "ready", "", shell("touch /ready")+probe("readinessProbe", "/ready")) + service("ready", ""))
	for _, name := range []string{"live", "slow", "ready"} {
		s.rolledOut("deployment/" + name)
	}
	if slow := s.pods("slow")[0]; slow.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Error("a container was restarted before it had started")
	}
	live := s.pods("live")[0]
	if _, err := s.sh(live.Metadata.Name, "rm /tmp-live"); err != nil {
		t.Fatal(err)
	}
	s.eventually(time.Minute, "what is not live is restarted", func() error {
		status := s.pods("live")[0].Status.ContainerStatuses[0]
		if status.RestartCount != 1 || !status.Ready {
			return fmt.Errorf("%+v", status)
		}
		return nil
	})
	endpoints := func(want string) {
		t.Helper()
		s.eventually(2*time.Minute, "the Service's endpoint is ready: "+want, func() error {
			got, err := s.try("", "get", "endpointslices", "-l", "kubernetes.io/service-name=ready", "-o",
				"jsonpath={.items[0].endpoints[0].conditions.ready}")
			if err == nil && got != want {
				err = fmt.Errorf("%q", got)
			}
			return err
		})
	}
	endpoints("true")
	ready := s.pods("ready")[0].Metadata.Name
	if _, err := s.sh(ready, "rm /ready"); err != nil {
		t.Fatal(err)
	}
	endpoints("false")
	if _, err := s.sh(ready, "touch /ready"); err != nil {
		t.Fatal(err)
	}
	endpoints("true")
}
