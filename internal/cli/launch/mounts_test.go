package launch

import (
	"os"
	"slices"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/poddir"
	"berth/internal/manifest"
)

// TestAContainerMayUseTheFilesOfItsPodUnderSELinux: they get its label, as those of a kubelet's pods do, and what is
// not in the pod's directory keeps its own. Seen to fail while no file was relabelled.
func TestAContainerMayUseTheFilesOfItsPodUnderSELinux(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("sub-paths of volumes need root")
	}
	outside := t.TempDir()
	decoded, err := decode(strings.ReplaceAll(`apiVersion: v1
kind: ConfigMap
metadata: {name: map}
data: {k: v}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  hostAliases: [{ip: 192.0.2.1, hostnames: [alias]}]
  containers:
  - name: c
    image: i:1
    volumeMounts:
    - {name: empty, mountPath: /own/empty}
    - {name: empty, mountPath: /own/sub, subPath: sub}
    - {name: map, mountPath: /own/map}
    - {name: host, mountPath: /others/host}
    - {name: host, mountPath: /others/sub, subPath: sub}
    - {name: image, mountPath: /others/image}
    - {name: claim, mountPath: /others/claim}
  volumes:
  - {name: empty, emptyDir: {}}
  - {name: map, configMap: {name: map}}
  - {name: host, hostPath: {path: OUTSIDE}}
  - {name: image, image: {reference: "i:1"}}
  - {name: claim, persistentVolumeClaim: {claimName: claim}}
`, "OUTSIDE", outside))
	if err != nil {
		t.Fatal(err)
	}
	runtime := &idRuntime{asked: make(chan struct{}, 1), make: make(chan struct{})}
	close(runtime.make)
	l := &Launcher{Runtime: runtime, Store: &poddir.Store{Root: t.TempDir(), Address: "unix:///a"}}
	pod := &Pod{Pod: decoded, Host: &manifest.Host{}, images: &images{byContainer: map[string]*cri.Image{"c": {}},
		byVolume: map[string]string{"image": "sha256:1"}}}
	if err := l.sandbox(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pod.dir.Remove(); err != nil {
			t.Error(err)
		}
	})
	for range 2 { // the second time as a command does that has adopted the pod
		if pod.hosts == nil {
			pod.hosts, err = l.hosts(pod)
		} else {
			pod.hosts, err = pod.dir.Hosts()
			pod.volumes = pod.dir.Volumes(pod.Spec.Volumes)
			addDaemons(pod.volumes, pod.Pod, pod.images)
		}
		if err != nil {
			t.Fatal(err)
		}
		request, _, err := l.request(t.Context(), pod, &pod.Spec.Containers[0], 0)
		if err != nil {
			t.Fatal(err)
		}
		var paths []string
		for _, m := range request.Config.Mounts {
			paths = append(paths, m.ContainerPath)
			if m.SelinuxRelabel == strings.HasPrefix(m.ContainerPath, "/others/") {
				t.Errorf("%s: relabelled: %v", m.ContainerPath, m.SelinuxRelabel)
			}
		}
		slices.Sort(paths)
		if want := []string{"/dev/termination-log", "/etc/hosts", "/others/claim", "/others/host", "/others/image",
			"/others/sub", "/own/empty", "/own/map", "/own/sub"}; !slices.Equal(paths, want) {
			t.Errorf("it has the mounts %v", paths)
		}
	}
}
