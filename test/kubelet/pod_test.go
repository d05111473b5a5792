package kubelet

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

var serial atomic.Int64

// ptr is a value that a manifest wants by pointer.
func ptr[T any](v T) *T { return &v }

// manifest is a pod with a name and UID of its own and these containers. A busy loop of the shell ends with its pod at
// once: the grace period is short.
func manifest(name string, containers ...v1.Container) *v1.Pod {
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		panic(err)
	}
	return &v1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s%d", name, serial.Add(1)),
			UID:  types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])),
		},
		Spec: v1.PodSpec{Containers: containers, TerminationGracePeriodSeconds: ptr(int64(2))},
	}
}

// sh is a container of busybox that runs a script. Edits change it.
func sh(name, script string, edits ...func(*v1.Container)) v1.Container {
	c := v1.Container{
		Name: name, Image: node.Busybox, ImagePullPolicy: v1.PullIfNotPresent,
		Command: []string{"sh", "-c", script},
	}
	for _, edit := range edits {
		edit(&c)
	}
	return c
}

// sleep is the script of a container that runs until it is told to end, and then ends with code 0.
const sleep = `trap 'exit 0' TERM; while :; do sleep 0.1; done`

// clock is the script that writes the time to a file, in seconds since the machine's start: busybox knows no finer
// date.
func clock(file string) string { return "read up rest </proc/uptime; echo $up >" + file }

// onTerm is the script of a container that runs until TERM comes, does this and ends.
func onTerm(script string) string {
	return "trap '" + script + "; exit 0' TERM; while :; do sleep 0.1; done"
}

// has says whether a text has all of these in it.
func has(text string, parts ...string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
}

// serve is the script of a container that answers HTTP on a port with a file of this text.
func serve(port int, text string) string {
	return fmt.Sprintf("mkdir -p /www && echo %s >/www/index.html && exec httpd -f -p %d -h /www", text, port)
}

// mounted gives a container a volume at a path.
func mounted(volume, path string) func(*v1.Container) {
	return func(c *v1.Container) {
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: volume, MountPath: path})
	}
}

// limited gives a container limits and requests: "cpu=100m,memory=32Mi".
func limited(requests, limits string) func(*v1.Container) {
	return func(c *v1.Container) { c.Resources = requirements(requests, limits) }
}

func requirements(requests, limits string) v1.ResourceRequirements {
	return v1.ResourceRequirements{Requests: amounts(requests), Limits: amounts(limits)}
}

// allotted is an error where the kubelet does not say that a container has these limits.
func allotted(now *v1.Pod, container, limits string) error {
	s := status(now, container)
	for name, amount := range amounts(limits) {
		if s.Resources == nil || !amount.Equal(s.Resources.Limits[name]) {
			return fmt.Errorf("%s: %+v, %s; %+v", container, s.Resources, states(now), now.Status.Conditions)
		}
	}
	return nil
}

func amounts(text string) v1.ResourceList {
	list := v1.ResourceList{}
	for pair := range strings.SplitSeq(text, ",") {
		if name, amount, ok := strings.Cut(pair, "="); ok {
			list[v1.ResourceName(name)] = resource.MustParse(amount)
		}
	}
	return list
}

// emptyDir and hostPath add a volume to a pod.
func emptyDir(p *v1.Pod, name string, source v1.EmptyDirVolumeSource) {
	p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{EmptyDir: &source}})
}

func hostPath(p *v1.Pod, name, path string, kind v1.HostPathType) {
	p.Spec.Volumes = append(p.Spec.Volumes,
		v1.Volume{Name: name, VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path, Type: &kind}}})
}

// execProbe, httpProbe and tcpProbe ask every second, and one answer is enough.
func execProbe(script string) *v1.Probe {
	return probe(v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"sh", "-c", script}}})
}

func httpProbe(port int, path string) *v1.Probe {
	return probe(v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromInt(port), Path: path}})
}

func tcpProbe(port int) *v1.Probe {
	return probe(v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt(port)}})
}

func probe(handler v1.ProbeHandler) *v1.Probe {
	return &v1.Probe{ProbeHandler: handler, PeriodSeconds: 1, TimeoutSeconds: 2, FailureThreshold: 1}
}

// pod is a static pod of a kubelet. It ends with its test.
type pod struct {
	k    *kubelet
	t    *testing.T
	spec *v1.Pod
	name string // as the kubelet calls it
}

// run puts a pod's manifest down.
func (k *kubelet) run(t *testing.T, spec *v1.Pod) *pod {
	t.Helper()
	p := &pod{k: k, t: t, spec: spec, name: spec.Name + "-" + k.name}
	p.write()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("pod %s:\n%s", p.name, p.describe())
		}
		p.remove()
		if k.node.PID() == 0 {
			return // the test has failed while berthd was away: only force will end the pod
		}
		eventually(t, 40*time.Second, "the pod is gone", p.gone)
	})
	return p
}

// path is the manifest's.
func (p *pod) path() string { return filepath.Join(p.k.manifests, p.spec.Name+".json") }

// write puts the manifest down, or down again after a change of spec. The kubelet never sees a part of it.
func (p *pod) write() {
	p.t.Helper()
	data, err := json.MarshalIndent(p.spec, "", "  ")
	if err != nil {
		p.t.Fatal(err)
	}
	partial := filepath.Join(p.k.dir, p.spec.Name+".partial")
	if err := os.WriteFile(partial, data, 0o600); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(partial, p.path()); err != nil {
		p.t.Fatal(err)
	}
}

// remove takes the manifest away, which ends the pod.
func (p *pod) remove() {
	p.t.Helper()
	if err := os.Remove(p.path()); err != nil && !errors.Is(err, os.ErrNotExist) {
		p.t.Fatal(err)
	}
}

// gone is nil when nothing of the pod runs and the kubelet has let go of its volumes.
func (p *pod) gone() error { return p.k.holds(string(p.spec.UID)) }

// now is the pod as the kubelet sees it, or an error.
func (p *pod) now() (*v1.Pod, error) {
	pods, err := p.k.pods(context.Background())
	if err != nil {
		return nil, err
	}
	if found := pods[p.name]; found != nil {
		return found, nil
	}
	return nil, fmt.Errorf("the kubelet knows no pod %s", p.name)
}

// until waits until the kubelet says of the pod what a claim says, and returns the pod.
func (p *pod) until(d time.Duration, claim string, holds func(*v1.Pod) error) *v1.Pod {
	p.t.Helper()
	var last *v1.Pod
	eventually(p.t, d, claim, func() error {
		var err error
		if last, err = p.now(); err != nil {
			return err
		}
		return holds(last)
	})
	return last
}

// running waits until all containers run, and are ready.
func (p *pod) running() *v1.Pod {
	p.t.Helper()
	return p.until(40*time.Second, "the pod is ready", func(now *v1.Pod) error {
		for _, c := range now.Status.Conditions {
			if c.Type == v1.PodReady && c.Status == v1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("%s: %s", now.Status.Phase, states(now))
	})
}

// ended waits until the pod has ended, and returns it.
func (p *pod) ended(phase v1.PodPhase) *v1.Pod {
	p.t.Helper()
	return p.until(40*time.Second, "the pod is "+string(phase), func(now *v1.Pod) error {
		if now.Status.Phase != phase {
			return fmt.Errorf("it is %s: %s", now.Status.Phase, states(now))
		}
		return nil
	})
}

// status is what the kubelet says of a container; an empty one if it says nothing.
func status(now *v1.Pod, container string) v1.ContainerStatus {
	for _, list := range [][]v1.ContainerStatus{now.Status.InitContainerStatuses, now.Status.ContainerStatuses} {
		for _, s := range list {
			if s.Name == container {
				return s
			}
		}
	}
	return v1.ContainerStatus{}
}

// states are the containers' states, in a line.
func states(now *v1.Pod) string {
	var parts []string
	for _, s := range append(now.Status.InitContainerStatuses, now.Status.ContainerStatuses...) {
		data, _ := json.Marshal(s.State)
		parts = append(parts, fmt.Sprintf("%s: %s (ready %t, %d restarts)", s.Name, data, s.Ready, s.RestartCount))
	}
	return strings.Join(parts, "; ") + now.Status.Message
}

// describe is what a person would want to see of a pod that did not do what it should.
func (p *pod) describe() string {
	now, err := p.now()
	if err != nil {
		return err.Error()
	}
	text, _ := json.MarshalIndent(now.Status, "", "  ")
	lines := []string{string(text)}
	log, _ := os.ReadFile(filepath.Join(p.k.dir, "kubelet.log"))
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, p.spec.Name) || strings.Contains(line, string(p.spec.UID)) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	const most = 30
	if len(lines) > most {
		lines = append(lines[:1], lines[len(lines)-most:]...)
	}
	return strings.Join(lines, "\n")
}

// logs are a container's, through the kubelet's API. The query is "tailLines=3" and the like.
func (p *pod) logs(container, query string) (string, error) {
	return p.k.get(context.Background(), "/containerLogs/default/"+p.name+"/"+container+"?"+query)
}

// log waits until a container's log has a text.
func (p *pod) log(container, text string) string {
	p.t.Helper()
	var log string
	eventually(p.t, 20*time.Second, fmt.Sprintf("%s says %q", container, text), func() error {
		var err error
		if log, err = p.logs(container, ""); err == nil && !strings.Contains(log, text) {
			err = fmt.Errorf("it says %q", log)
		}
		return err
	})
	return log
}

// sh runs a script in a container through the kubelet's API, and returns what it wrote. The script must succeed.
func (p *pod) sh(container, script string) string {
	p.t.Helper()
	out, code, err := p.exec(container, streams{transport: spdyTransport}, "sh", "-c", script)
	if err != nil || code != 0 {
		p.t.Fatalf("%q in %s: code %d, %v: %s", script, container, code, err, out)
	}
	return strings.TrimSpace(out)
}

// container is the runtime's status of a container of the pod, the newest of that name.
func (p *pod) container(name string) *cri.ContainerStatus {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), node.Patience(10*time.Second))
	defer cancel()
	list, err := p.k.node.Runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
		LabelSelector: map[string]string{"io.kubernetes.pod.uid": string(p.spec.UID), "io.kubernetes.container.name": name},
	}})
	if err != nil {
		p.t.Fatal(err)
	}
	var newest *cri.Container
	for _, c := range list.Containers {
		if newest == nil || c.CreatedAt > newest.CreatedAt {
			newest = c
		}
	}
	if newest == nil {
		p.t.Fatalf("the runtime has no container %s", name)
	}
	status, err := p.k.node.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: newest.Id})
	if err != nil {
		p.t.Fatal(err)
	}
	return status.Status
}

// pid is the init process of a container, as the runtime says to those who want to know more.
func (p *pod) pid(container string) int {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), node.Patience(10*time.Second))
	defer cancel()
	status, err := p.k.node.Runtime.ContainerStatus(ctx,
		&cri.ContainerStatusRequest{ContainerId: p.container(container).Id, Verbose: true})
	if err != nil {
		p.t.Fatal(err)
	}
	var info struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(status.Info["info"]), &info); err != nil || info.PID == 0 {
		p.t.Fatalf("no pid in %q: %v", status.Info["info"], err)
	}
	return info.PID
}

// cgroup is the content of a file of a container's cgroup, by controller for v1 and by the name in v2.
func (p *pod) cgroup(container, v1File, v2File string) string {
	p.t.Helper()
	id := p.container(container).Id
	paths, err := node.CgroupMounts()
	if err != nil {
		p.t.Fatal(err)
	}
	for _, path := range paths {
		top := filepath.Join(path, p.k.node.CgroupRoot)
		var dir string
		_ = filepath.WalkDir(top, func(path string, entry os.DirEntry, err error) error {
			if err == nil && entry.IsDir() && strings.Contains(entry.Name(), id) {
				dir = path
				return filepath.SkipAll
			}
			return nil
		})
		for _, file := range []string{v1File, v2File} {
			if data, err := os.ReadFile(filepath.Join(dir, file)); dir != "" && err == nil {
				return strings.TrimSpace(string(data))
			}
		}
	}
	p.t.Fatalf("no cgroup of container %s below %s has %s or %s", container, p.k.node.CgroupRoot, v1File, v2File)
	return ""
}
