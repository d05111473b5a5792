package kubelet

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// cluster is a kubelet of an API server.
type cluster struct {
	k   *kubelet
	api *apiserver
}

func startCluster(t *testing.T, no node.Options) *cluster {
	t.Helper()
	api := startAPI(t)
	k := own(t, no, options{
		args:   []string{"--kubeconfig", api.kubeconfig(t)},
		config: map[string]any{"contentType": "application/json"},
	})
	eventually(t, 20*time.Second, "the node is registered", func() error {
		var n v1.Node
		return api.read(request{resource: "nodes", name: k.name}, &n)
	})
	return &cluster{k: k, api: api}
}

// read decodes an object.
func (a *apiserver) read(r request, into any) error {
	a.mu.Lock()
	o := a.objects[r.key()]
	a.mu.Unlock()
	if o == nil {
		return fmt.Errorf("there is no %s", r.key())
	}
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// write stores an object of a group and version.
func (a *apiserver) write(t *testing.T, r request, kind string, what any) {
	t.Helper()
	data, err := json.Marshal(what)
	if err != nil {
		t.Fatal(err)
	}
	var o object
	if err := json.Unmarshal(data, &o); err != nil {
		t.Fatal(err)
	}
	if r.version == "" {
		r.version = "v1"
	}
	o["apiVersion"], o["kind"] = r.version, kind
	a.put(r, o)
}

// run gives the API server a pod for the node. It is deleted when the test ends.
func (c *cluster) run(t *testing.T, spec *v1.Pod) *pod {
	t.Helper()
	spec.Spec.NodeName, spec.Spec.RestartPolicy = c.k.name, v1.RestartPolicyAlways
	spec.Spec.EnableServiceLinks, spec.Spec.DNSPolicy = ptr(false), v1.DNSDefault
	spec.Spec.ServiceAccountName = "builder"
	spec.Status.Phase = v1.PodPending
	for i := range spec.Spec.Containers {
		spec.Spec.Containers[i].TerminationMessagePath = "/dev/termination-log"
		spec.Spec.Containers[i].TerminationMessagePolicy = v1.TerminationMessageReadFile
	}
	r := request{resource: "pods", namespace: "default", name: spec.Name}
	c.api.write(t, r, "Pod", spec)
	p := &pod{k: c.k, t: t, spec: spec, name: spec.Name}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("pod %s:\n%s", p.name, p.describe())
		}
		c.remove(t, p)
		eventually(t, 40*time.Second, "the pod is gone", p.gone)
		eventually(t, 20*time.Second, "the kubelet deletes the pod's object", func() error {
			var now v1.Pod
			if err := c.api.read(r, &now); err == nil {
				return fmt.Errorf("it is there")
			}
			return nil
		})
	})
	return p
}

// change changes the pod's object.
func (c *cluster) change(t *testing.T, p *pod, how func(*v1.Pod)) {
	t.Helper()
	r := request{resource: "pods", namespace: "default", name: p.name}
	var now v1.Pod
	if err := c.api.read(r, &now); err != nil {
		t.Fatal(err)
	}
	how(&now)
	c.api.write(t, r, "Pod", &now)
}

// remove marks the pod's object for deletion, as an API server does.
func (c *cluster) remove(t *testing.T, p *pod) {
	t.Helper()
	c.change(t, p, func(now *v1.Pod) {
		if now.DeletionTimestamp == nil {
			deletion := metav1.NewTime(time.Now().Add(time.Duration(*now.Spec.TerminationGracePeriodSeconds) * time.Second))
			now.DeletionTimestamp, now.DeletionGracePeriodSeconds = &deletion, now.Spec.TerminationGracePeriodSeconds
		}
	})
}

// TestVolumesOfACluster has ConfigMap and Secret as volumes and variables, and both projected into one volume with a
// service account token and the downward API.
func TestVolumesOfACluster(t *testing.T) {
	t.Parallel()
	c := startCluster(t, node.Options{})
	settings := request{resource: "configmaps", namespace: "default", name: "settings"}
	c.api.write(t, settings, "ConfigMap", &v1.ConfigMap{Data: map[string]string{"color": "green", "size": "small"}})
	c.api.write(t, request{resource: "secrets", namespace: "default", name: "credentials"}, "Secret",
		&v1.Secret{Data: map[string][]byte{"password": []byte("swordfish")}, Type: v1.SecretTypeOpaque})
	main := sh("main", sleep, mounted("settings", "/settings"), mounted("credentials", "/credentials"),
		mounted("all", "/all"), mounted("settings", "/etc/color"), subPath("color"))
	ofSettings, ofCredentials := v1.LocalObjectReference{Name: "settings"}, v1.LocalObjectReference{Name: "credentials"}
	main.Env = []v1.EnvVar{
		{Name: "COLOR", ValueFrom: &v1.EnvVarSource{
			ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: ofSettings, Key: "color"}}},
		{Name: "PASSWORD", ValueFrom: &v1.EnvVarSource{
			SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: ofCredentials, Key: "password"}}},
	}
	main.EnvFrom = []v1.EnvFromSource{{Prefix: "SET_",
		ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: ofSettings}}}
	spec := manifest("volumes", main)
	spec.Labels = map[string]string{"app": "volumes"}
	mode := ptr(int32(0o644))
	spec.Spec.Volumes = []v1.Volume{
		{Name: "settings", VolumeSource: v1.VolumeSource{
			ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: ofSettings, DefaultMode: mode}}},
		{Name: "credentials", VolumeSource: v1.VolumeSource{
			Secret: &v1.SecretVolumeSource{SecretName: "credentials", DefaultMode: ptr(int32(0o400))}}},
		{Name: "all", VolumeSource: v1.VolumeSource{
			Projected: &v1.ProjectedVolumeSource{DefaultMode: mode, Sources: []v1.VolumeProjection{
				{ServiceAccountToken: &v1.ServiceAccountTokenProjection{
					Path: "token", ExpirationSeconds: ptr(int64(3600)), Audience: "test"}},
				{ConfigMap: &v1.ConfigMapProjection{
					LocalObjectReference: ofSettings, Items: []v1.KeyToPath{{Key: "size", Path: "deep/size"}}}},
				{Secret: &v1.SecretProjection{LocalObjectReference: ofCredentials}},
				{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{
					{Path: "labels", FieldRef: &v1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.labels"}}}}},
			}}}},
	}
	p := c.run(t, spec)
	p.running()
	for script, want := range map[string]string{
		"cat /settings/color /settings/size":                                "greensmall",
		"cat /credentials/password; stat -L -c ' %a' /credentials/password": "swordfish 400",
		"cat /all/token": "token of default/builder",
		"cat /all/deep/size /all/password /all/labels":       `smallswordfishapp="volumes"`,
		"cat /etc/color; echo $COLOR $PASSWORD $SET_size":    "greengreen swordfish small",
		"grep ' /credentials ' /proc/mounts | cut -d' ' -f1": "tmpfs",
	} {
		if got := p.sh("main", script); got != want {
			t.Errorf("%s: %q, not %q", script, got, want)
		}
	}
	c.api.write(t, settings, "ConfigMap", &v1.ConfigMap{Data: map[string]string{"color": "blue", "size": "small"}})
	eventually(t, 30*time.Second, "the volume follows the ConfigMap", func() error {
		if got := p.sh("main", "cat /settings/color; echo; cat /etc/color"); got != "blue\ngreen" {
			return fmt.Errorf("it has %q", got)
		}
		return nil
	})
	// The API server is told what the runtime says.
	eventually(t, 10*time.Second, "the object has the status", func() error {
		var now v1.Pod
		if err := c.api.read(request{resource: "pods", namespace: "default", name: p.name}, &now); err != nil {
			return err
		}
		s := status(&now, "main")
		if now.Status.Phase != v1.PodRunning || now.Status.PodIP == "" || !s.Ready || s.Image != node.Busybox ||
			!strings.HasPrefix(s.ContainerID, "berth://") {
			return fmt.Errorf("%+v", now.Status)
		}
		return nil
	})
	var n v1.Node
	if err := c.api.read(request{resource: "nodes", name: c.k.name}, &n); err != nil {
		t.Fatal(err)
	}
	if v := n.Status.NodeInfo.ContainerRuntimeVersion; !strings.HasPrefix(v, "berth://") {
		t.Errorf("the node's runtime is %q", v)
	}
	eventually(t, 30*time.Second, "the node is ready", func() error {
		if err := c.api.read(request{resource: "nodes", name: c.k.name}, &n); err != nil {
			return err
		}
		for _, condition := range n.Status.Conditions {
			if condition.Type == v1.NodeReady && condition.Status == v1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("%+v", n.Status.Conditions)
	})
}

// TestAClusterResizesInPlace is the resize as a cluster does it: the object's resources change.
func TestAClusterResizesInPlace(t *testing.T) {
	t.Parallel()
	c := startCluster(t, node.Options{})
	p := c.run(t, manifest("resize", sh("main", sleep, limited("cpu=100m,memory=16Mi", "cpu=200m,memory=32Mi"))))
	before := p.running()
	c.change(t, p, func(now *v1.Pod) {
		now.Spec.Containers[0].Resources = requirements("cpu=150m,memory=24Mi", "cpu=300m,memory=48Mi")
	})
	now := p.until(40*time.Second, "the container has its new resources", func(now *v1.Pod) error {
		return allotted(now, "main", "cpu=300m,memory=48Mi")
	})
	if s := status(now, "main"); s.ContainerID != status(before, "main").ContainerID || s.RestartCount != 0 {
		t.Errorf("%+v", s)
	}
	if got := p.cgroup("main", "memory.limit_in_bytes", "memory.max"); got != "50331648" {
		t.Errorf("memory limit %s", got)
	}
}

// TestPullSecretsEphemeralContainersAndRuntimeClasses are what only a pod of an API server has.
func TestPullSecretsEphemeralContainersAndRuntimeClasses(t *testing.T) {
	t.Parallel()
	registry, err := registrytest.New(registrytest.WithBasicAuth("puller", "swordfish"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { registry.Close() })
	image, err := registrytest.Image(registrytest.WithBusybox())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"busybox:1", "private:1"} {
		if err := registry.Push(name, image); err != nil {
			t.Fatal(err)
		}
	}
	c := startCluster(t, node.Options{Registry: registry})
	auth := base64.StdEncoding.EncodeToString([]byte("puller:swordfish"))
	c.api.write(t, request{resource: "secrets", namespace: "default", name: "pull"}, "Secret", &v1.Secret{
		Type: v1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{
			v1.DockerConfigJsonKey: []byte(`{"auths":{"` + node.RegistryHost + `":{"auth":"` + auth + `"}}}`),
		}})
	without := manifest("nosecret", sh("main", sleep))
	q := c.run(t, without)
	q.until(30*time.Second, "the image cannot be pulled", func(now *v1.Pod) error {
		if s := status(now, "main"); s.State.Waiting == nil || !strings.Contains(s.State.Waiting.Reason, "ImagePull") ||
			strings.Contains(s.State.Waiting.Message, "swordfish") {
			return fmt.Errorf("%+v", s.State)
		}
		return nil
	})
	with := func(spec *v1.Pod) *v1.Pod {
		spec.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "pull"}}
		return spec
	}
	p := c.run(t, with(manifest("secret", sh("main", "exec sleep 5432"))))
	p.running()

	c.change(t, p, func(now *v1.Pod) {
		debug := sh("debug", sleep)
		debug.TerminationMessagePath, debug.TerminationMessagePolicy = "/dev/termination-log", v1.TerminationMessageReadFile
		// As `kubectl debug --profile=sysadmin` has it: the pod was not privileged when it was made.
		privileged := sh("privileged", sleep, func(c *v1.Container) {
			c.SecurityContext = &v1.SecurityContext{Privileged: ptr(true)}
		})
		privileged.TerminationMessagePath = debug.TerminationMessagePath
		privileged.TerminationMessagePolicy = debug.TerminationMessagePolicy
		now.Spec.EphemeralContainers = []v1.EphemeralContainer{
			{TargetContainerName: "main", EphemeralContainerCommon: v1.EphemeralContainerCommon(debug)},
			{EphemeralContainerCommon: v1.EphemeralContainerCommon(privileged)}}
	})
	eventually(t, 20*time.Second, "the ephemeral container sees the other's process", func() error {
		out, code, err := p.exec("debug", streams{transport: webSocketTransport}, "sh", "-c", "ps | grep 'sleep 543[2]'")
		if err != nil || code != 0 {
			return fmt.Errorf("code %d, %v: %s", code, err, out)
		}
		return nil
	})
	eventually(t, 20*time.Second, "the privileged ephemeral container runs", func() error {
		out, code, err := p.exec("privileged", streams{transport: webSocketTransport}, "sh", "-c",
			"mkdir -p /tmp/m && mount -t tmpfs x /tmp/m")
		if err != nil || code != 0 {
			return fmt.Errorf("code %d, %v: %s", code, err, out)
		}
		return nil
	})

	for handler, path := range c.k.node.Handlers {
		t.Run("class "+handler+" is "+filepath.Base(path), func(t *testing.T) {
			nodetest.Handler(t, c.k.node, handler)
			class := request{version: "node.k8s.io/v1", resource: "runtimeclasses", name: "class-" + handler}
			c.api.write(t, class, "RuntimeClass", map[string]any{"handler": handler})
			spec := with(manifest("class", sh("main", sleep)))
			spec.Spec.RuntimeClassName = ptr("class-" + handler)
			p := c.run(t, spec)
			p.running()
			if got := p.sh("main", "echo runs"); got != "runs" {
				t.Errorf("%q", got)
			}
		})
	}
}
