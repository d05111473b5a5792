package kubelet

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/test/node"
)

func readOnly(c *v1.Container) { c.VolumeMounts[len(c.VolumeMounts)-1].ReadOnly = true }

func subPath(path string) func(*v1.Container) {
	return func(c *v1.Container) { c.VolumeMounts[len(c.VolumeMounts)-1].SubPath = path }
}

func TestEmptyDirs(t *testing.T) {
	t.Parallel()
	writer := sh("writer", "echo start >>/shared/starts; test $(wc -l </shared/starts) -ge 2 || exit 1; "+sleep,
		mounted("shared", "/shared"), mounted("memory", "/memory"))
	spec := manifest("emptydir", writer,
		sh("reader", sleep, mounted("shared", "/other"), readOnly, mounted("memory", "/memory"),
			mounted("shared", "/part"), subPath("sub/dir")))
	emptyDir(spec, "shared", v1.EmptyDirVolumeSource{})
	emptyDir(spec, "memory", v1.EmptyDirVolumeSource{
		Medium: v1.StorageMediumMemory, SizeLimit: ptr(resource.MustParse("4Mi")),
	})
	p := shared(t).run(t, spec)
	p.until(40*time.Second, "the writer is started again and stays", func(now *v1.Pod) error {
		if s := status(now, "writer"); s.RestartCount != 1 || s.State.Running == nil {
			return fmt.Errorf("%s", states(now))
		}
		return nil
	})
	eventually(t, time.Minute, "the other container sees both starts and cannot write", func() error {
		if got := p.sh("reader", "cat /other/starts; touch /other/x 2>&1 || true"); !has(got, "start\nstart\n", "Read-only") {
			return fmt.Errorf("it sees %q", got)
		}
		return nil
	})
	if got := p.sh("reader", "touch /part/file; ls /other/sub/dir"); got != "file" {
		t.Errorf("below the sub-path: %q", got)
	}
	if got := p.sh("writer", "grep ' /memory ' /proc/mounts"); !has(got, " tmpfs ", "size=4096k") {
		t.Errorf("the mount in memory is %q", got)
	}
	got := p.sh("writer", "head -c 8000000 /dev/zero >/memory/file 2>/dev/null || wc -c </memory/file")
	if got != "4194304" {
		t.Errorf("of 8 MB into 4 MiB of memory went %s", got)
	}
	if got := p.sh("reader", "wc -c </memory/file"); got != "4194304" {
		t.Errorf("the other container sees %s bytes", got)
	}
}

func TestHostPaths(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("of the host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	spec := manifest("hostpath", sh("main", sleep, mounted("dir", "/dir"), mounted("file", "/etc/of-host"), readOnly,
		mounted("made", "/made"), mounted("dir", "/sub"), subPath("below")))
	hostPath(spec, "dir", dir, v1.HostPathDirectory)
	hostPath(spec, "file", filepath.Join(dir, "file"), v1.HostPathFile)
	hostPath(spec, "made", filepath.Join(dir, "made", "deep"), v1.HostPathDirectoryOrCreate)
	p := shared(t).run(t, spec)
	p.running()
	got := p.sh("main", "cat /etc/of-host; echo x 2>&1 >/etc/of-host || true")
	if !has(got, "of the host\n", "Read-only") {
		t.Errorf("the file is %q", got)
	}
	p.sh("main", "echo from the pod >/dir/new; touch /made/here; touch /sub/there")
	for name, want := range map[string]string{"new": "from the pod\n", "made/deep/here": "", "below/there": ""} {
		if data, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(data) != want {
			t.Errorf("%s on the host: %q, %v", name, data, err)
		}
	}

	absent := manifest("hostpathabsent", sh("main", sleep, mounted("dir", "/dir")))
	hostPath(absent, "dir", filepath.Join(dir, "absent"), v1.HostPathDirectory)
	q := shared(t).run(t, absent)
	time.Sleep(node.Lapse(2 * time.Second))
	if now, err := q.now(); err != nil || now.Status.Phase != v1.PodPending {
		t.Errorf("without its directory the pod is %v, %v", now, err)
	}
}

func TestMountPropagation(t *testing.T) {
	t.Parallel()
	k := shared(t)
	// A directory that is a shared mount, as a CSI driver's is.
	dir := filepath.Join(k.root, "propagation-"+t.Name())
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	inside := filepath.Join(dir, "inside")
	t.Cleanup(func() { // after the pod
		for _, dir := range []string{inside, dir} {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		}
	})
	both, down := v1.MountPropagationBidirectional, v1.MountPropagationHostToContainer
	spec := manifest("propagation",
		sh("driver", "mkdir -p /dir/inside && mount -t tmpfs tmpfs /dir/inside && echo here >/dir/inside/file; "+
			onTerm("umount /dir/inside"), mounted("dir", "/dir"),
			func(c *v1.Container) {
				c.VolumeMounts[0].MountPropagation = &both
				c.SecurityContext = &v1.SecurityContext{Privileged: ptr(true)}
			}),
		sh("user", sleep, mounted("dir", "/dir"), func(c *v1.Container) { c.VolumeMounts[0].MountPropagation = &down }))
	hostPath(spec, "dir", dir, v1.HostPathDirectory)
	spec.Spec.TerminationGracePeriodSeconds = ptr(int64(10))
	p := k.run(t, spec)
	p.running()
	eventually(t, 10*time.Second, "the host sees the mount of the pod", func() error {
		_, err := os.Stat(filepath.Join(inside, "file"))
		return err
	})
	if got := p.sh("user", "cat /dir/inside/file"); got != "here" {
		t.Errorf("the other container sees %q", got)
	}
}

func TestDownwardAPI(t *testing.T) {
	t.Parallel()
	field := func(name, path string) v1.EnvVar {
		return v1.EnvVar{Name: name, ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: path}}}
	}
	amount := func(name, resource string) v1.EnvVar {
		return v1.EnvVar{Name: name,
			ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: resource}}}
	}
	c := sh("main", "env; "+sleep, limited("cpu=50m,memory=16Mi", "cpu=1,memory=32Mi"), mounted("info", "/info"))
	c.Env = []v1.EnvVar{
		field("NAME", "metadata.name"), field("NS", "metadata.namespace"), field("POD_UID", "metadata.uid"),
		field("COLOR", "metadata.labels['color']"), field("NOTE", "metadata.annotations['note']"),
		field("POD_IP", "status.podIP"), field("NODE", "spec.nodeName"),
		amount("CPU", "limits.cpu"), amount("MEMORY", "limits.memory"), {Name: "GREETING", Value: "$(NAME) is $(COLOR)"},
	}
	spec := manifest("downward", c)
	spec.Labels, spec.Annotations = map[string]string{"color": "green"}, map[string]string{"note": "read me"}
	labels := []v1.DownwardAPIVolumeFile{
		{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
		{Path: "deep/memory", Mode: ptr(int32(0o400)),
			ResourceFieldRef: &v1.ResourceFieldSelector{ContainerName: "main", Resource: "requests.memory"}},
	}
	spec.Spec.Volumes = []v1.Volume{
		{Name: "info", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: labels}}},
	}
	p := shared(t).run(t, spec)
	now := p.running()
	log := p.log("main", "GREETING")
	for _, want := range []string{
		"NAME=" + p.name, "NS=default", "POD_UID=" + string(spec.UID), "COLOR=green", "NOTE=read me",
		"POD_IP=" + now.Status.PodIP, "NODE=" + p.k.name, "CPU=1", "MEMORY=33554432", "GREETING=" + p.name + " is green",
	} {
		if !strings.Contains(log, want+"\n") {
			t.Errorf("no %q in its variables:\n%s", want, log)
		}
	}
	got := p.sh("main", "cat /info/labels /info/deep/memory; stat -L -c ' %a' /info/deep/memory")
	if got != `color="green"16777216 400` {
		t.Errorf("the volume has %q", got)
	}
	// A label that changes reaches the volume of the running container.
	spec.Labels["color"] = "blue"
	p.write()
	eventually(t, 30*time.Second, "the volume follows the label", func() error {
		if got := p.sh("main", "cat /info/labels"); got != `color="blue"` {
			return fmt.Errorf("it has %q", got)
		}
		return nil
	})
	if now, err := p.now(); err != nil || status(now, "main").RestartCount != 0 {
		t.Errorf("the container was started again: %v", err)
	}
}

func TestImageVolumes(t *testing.T) {
	t.Parallel()
	spec := manifest("imagevolume", sh("main", sleep, mounted("image", "/image"),
		mounted("image", "/part"), subPath("work")))
	spec.Spec.Volumes = []v1.Volume{{Name: "image", VolumeSource: v1.VolumeSource{
		Image: &v1.ImageVolumeSource{Reference: node.Defaults, PullPolicy: v1.PullIfNotPresent}}}}
	p := shared(t).run(t, spec)
	p.running()
	got := p.sh("main", "grep app: /image/etc/passwd; touch /image/x 2>&1 || true; stat -c 'owned by %u' /part")
	if !has(got, "app:x:1001", "Read-only", "owned by 1001") {
		t.Errorf("%q", got)
	}
}

// TestArtifactVolumes: a kubelet pulls an artifact for a volume as it pulls an image, and tells why a container cannot
// run from one.
func TestArtifactVolumes(t *testing.T) {
	t.Parallel()
	k, name := shared(t), fresh("model")
	ref := pushArtifact(t, k.node, name, 1000)
	spec := manifest("artifactvolume", sh("main", sleep, mounted("model", "/model"),
		mounted("model", "/part"), subPath("dir")))
	spec.Spec.Volumes = []v1.Volume{{Name: "model", VolumeSource: v1.VolumeSource{
		Image: &v1.ImageVolumeSource{Reference: ref, PullPolicy: v1.PullAlways}}}}
	p := k.run(t, spec)
	p.running()
	if got := p.sh("main", "cat /model/dir/of /part/of; touch /model/x 2>&1 || true"); !has(got, name+name, "Read-only") {
		t.Errorf("%q", got)
	}
	c := sh("main", sleep)
	c.Image = ref
	of := k.run(t, manifest("artifactcontainer", c))
	of.until(time.Minute, "the artifact is refused as the image of a container", func(now *v1.Pod) error {
		w := status(now, "main").State.Waiting
		if w == nil || w.Reason != "CreateContainerError" || !strings.Contains(w.Message, "not an image but an artifact") {
			return fmt.Errorf("it is %s, %+v", states(now), w)
		}
		return nil
	})
}

func TestSecurityContexts(t *testing.T) {
	t.Parallel()
	spec := manifest("security",
		sh("main", sleep, mounted("shared", "/shared"), func(c *v1.Container) {
			c.SecurityContext = &v1.SecurityContext{
				ReadOnlyRootFilesystem: ptr(true), AllowPrivilegeEscalation: ptr(false),
				Capabilities:   &v1.Capabilities{Drop: []v1.Capability{"ALL"}, Add: []v1.Capability{"NET_BIND_SERVICE"}},
				SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault},
			}
		}),
		sh("privileged", sleep, func(c *v1.Container) {
			c.SecurityContext = &v1.SecurityContext{Privileged: ptr(true), RunAsUser: ptr(int64(0)), RunAsNonRoot: ptr(false)}
		}))
	spec.Spec.SecurityContext = &v1.PodSecurityContext{
		RunAsUser: ptr(int64(1234)), RunAsGroup: ptr(int64(2345)), RunAsNonRoot: ptr(true), FSGroup: ptr(int64(3456)),
		SupplementalGroups: []int64{4567}, Sysctls: []v1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "80"}},
	}
	emptyDir(spec, "shared", v1.EmptyDirVolumeSource{})
	p := shared(t).run(t, spec)
	p.running()
	got := p.sh("main", "id -u; id -g; id -G; touch /shared/file; stat -c %g /shared/file; "+
		"cat /proc/sys/net/ipv4/ip_unprivileged_port_start")
	if got != "1234\n2345\n2345 3456 4567\n3456\n80" {
		t.Errorf("main: %q", got)
	}
	got = p.sh("main", "touch /x 2>&1; grep -E 'CapBnd|NoNewPrivs|Seccomp:' /proc/self/status | tr '\\t\\n' '  '")
	if !has(got, "Read-only", "CapBnd: 0000000000000400", "NoNewPrivs: 1", "Seccomp: 2") {
		t.Errorf("main: %q", got)
	}
	got = p.sh("privileged", "id -u; mkdir -p /tmp/m && mount -t tmpfs tmpfs /tmp/m && echo mounted")
	if got != "0\nmounted" {
		t.Errorf("privileged: %q", got)
	}
}

func TestUserNamespaces(t *testing.T) {
	t.Parallel()
	spec := manifest("userns", sh("main", sleep, mounted("shared", "/shared")))
	spec.Spec.HostUsers = ptr(false)
	emptyDir(spec, "shared", v1.EmptyDirVolumeSource{})
	p := shared(t).run(t, spec)
	p.running()
	fields := strings.Fields(p.sh("main", "cat /proc/self/uid_map"))
	if len(fields) != 3 || fields[0] != "0" || fields[1] == "0" || fields[2] != "65536" {
		t.Errorf("the mapping is %v", fields)
	}
	if got := p.sh("main", "id -u; touch /shared/file /file && stat -c %u /shared/file /file /bin"); got != "0\n0\n0\n0" {
		t.Errorf("%q", got)
	}
}
