package manifest

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/device"
)

// decodePods are the pods of a file without a name.
func decodePods(r io.Reader, options Options) ([]*Pod, error) {
	documents, err := DecodeFiles([]File{{In: r}}, options)
	if err != nil {
		return nil, err
	}
	return documents.Pods(), nil
}

// decode reads a manifest of one pod: head, then spec indented below spec.
func decode(t *testing.T, spec string) *Pod {
	t.Helper()
	pods, err := decodePods(strings.NewReader(withSpec(spec)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	return pods[0]
}

func withSpec(spec string) string {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n  uid: u-1\n  labels: {app: shop}\nspec:\n")
	for line := range strings.Lines(spec) {
		b.WriteString("  " + line)
	}
	return b.String()
}

const one = "containers:\n- name: c\n  image: i:1\n"

var testHost = &Host{
	Name: "node1", IPs: []string{"192.0.2.7", "2001:db8::7"}, MilliCPU: 2000, Memory: 8 << 30,
	ResolvConf: []byte("nameserver 9.9.9.9\nsearch example.org\noptions ndots:1 edns0\n"), SeccompDir: "/profiles",
}

// translate makes the request for the first container of a pod.
func translate(t *testing.T, p *Pod) *cri.ContainerConfig {
	t.Helper()
	c := &p.Spec.Containers[0]
	env, err := p.Environment(c, testHost, []string{"10.0.0.2", "fd00::2"})
	if err != nil {
		t.Fatal(err)
	}
	image := &cri.Image{Id: "sha256:1", Uid: &cri.Int64Value{Value: 33}}
	config, err := p.Container(c, &Placement{Host: testHost, Env: env, Image: image, LogPath: "c/0.log"})
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func TestTheExamplesAreGood(t *testing.T) {
	for path, containers := range map[string]int{
		filepath.Join("..", "..", "examples", "hello.yaml"):     1,
		filepath.Join("..", "..", "test", "demo", "hello.yaml"): 2,
	} {
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		pods, err := decodePods(file, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if len(pods) != 1 || len(pods[0].Spec.Containers) != containers || pods[0].FullName() != "default/hello" {
			t.Fatalf("%s: got %+v", path, pods)
		}
	}
}

func TestDocumentsAreReadOneByOne(t *testing.T) {
	text := "# a comment\n---\n" + withSpec(one) + "\n---\n# nothing\n---\n" + strings.Replace(withSpec(one),
		"name: p", "name: q", 1)
	pods, err := decodePods(strings.NewReader(text), Options{})
	if err != nil || len(pods) != 2 || pods[1].Name != "q" {
		t.Fatalf("got %v, %v", pods, err)
	}
	if _, err := decodePods(strings.NewReader(text), Options{Name: "x"}); err == nil {
		t.Fatal("one name was given to two pods")
	}
	if pods, err := decodePods(strings.NewReader(withSpec(one)), Options{Name: "x"}); err != nil || pods[0].Name != "x" {
		t.Fatalf("got %v, %v", pods, err)
	}
}

func TestWhatIsNotSupportedIsRefusedByItsPath(t *testing.T) {
	for _, c := range []struct{ spec, field string }{
		{one + "  volumeDevices: [{name: v, devicePath: /dev/x}]\n", "spec.containers[0].volumeDevices"},
		{one + "  resources: {limits: {attachable-volumes-x: 1}}\n", "container c: resources: attachable-volumes-x"},
		{one + "  resources: {limits: {ephemeral-storage: 1Gi}}\n", "container c: resources: ephemeral-storage"},
		{one + "  restartPolicy: Always\n", "spec.containers[0].restartPolicy"},
		{one + "volumes: [{name: v, nfs: {server: s, path: /}}]\n", "spec.volumes[0].nfs"},
		{one + "volumes: [{name: v, projected: {sources: [{clusterTrustBundle: {path: x}}]}}]\n",
			"spec.volumes[0].projected.sources[0].clusterTrustBundle"},
		{one + "schedulingGates: [{name: g}]\n", "spec.schedulingGates"},
		{one + "volumes: [{name: v, emptyDir: {sizeLimit: 1Gi}}]\n",
			"spec.volumes[0].emptyDir.sizeLimit without medium: Memory"},
		{one + "overhead: {cpu: 1}\n", "spec.overhead"},
	} {
		text := withSpec(c.spec)
		_, err := decodePods(strings.NewReader(text), Options{})
		if err == nil || !strings.Contains(err.Error(), "\n  "+c.field+"\n") {
			t.Errorf("%s: got %v", c.field, err)
		}
		pods, err := decodePods(strings.NewReader(text), Options{IgnoreUnsupported: true})
		if err != nil || len(pods[0].Warnings) != 1 || !strings.HasPrefix(pods[0].Warnings[0], c.field) {
			t.Errorf("%s ignored: got %v, %v", c.field, pods, err)
		}
	}
}

func TestVolumesThatAreNotSupportedAreIgnoredWithTheirMounts(t *testing.T) {
	text := withSpec(one + "  volumeMounts: [{name: remote, mountPath: /remote}, {name: kept, mountPath: /kept}]\n" +
		"volumes: [{name: remote, nfs: {server: s, path: /}}, {name: kept, emptyDir: {}}]\n")
	pods, err := decodePods(strings.NewReader(text), Options{IgnoreUnsupported: true})
	if err != nil {
		t.Fatal(err)
	}
	spec := &pods[0].Spec
	if len(spec.Volumes) != 1 || len(spec.Containers[0].VolumeMounts) != 1 ||
		spec.Containers[0].VolumeMounts[0].Name != "kept" {
		t.Errorf("got %+v", spec)
	}
	want := []string{"spec.volumes[0].nfs is not supported and ignored", "container c: nothing is mounted on /remote"}
	if !slices.Equal(pods[0].Warnings, want) {
		t.Errorf("warnings are %q, want %q", pods[0].Warnings, want)
	}
	text = withSpec(one + "volumes: [{name: v}]\n")
	if _, err := decodePods(strings.NewReader(text), Options{IgnoreUnsupported: true}); err == nil {
		t.Error("a volume without any source was taken")
	}
}

func TestValuesThatSayWhatHappensAnywayAreTaken(t *testing.T) {
	decode(t,
		one+"restartPolicy: Never\nautomountServiceAccountToken: false\nenableServiceLinks: false\nhostUsers: true\n")
}

func TestBadManifestsAreRefused(t *testing.T) {
	for _, c := range []struct{ text, says string }{
		{"", "no pod"},
		{"apiVersion: v1\nkind: Service\n", "kind: Service is not supported"},
		{"apiVersion: v2\nkind: Pod\n", "apiVersion"},
		{"a: b\n", "kind: missing"},
		{withSpec(one) + "  wrong: field\n", `unknown field "spec.wrong"`},
		{withSpec(one) + "  hostNetwork: 3\n", "hostNetwork"},
		{withSpec(one + "- name: c\n  image: i\n"), `spec.containers[1].name: "c" appears twice`},
		{withSpec(one + "- name: C_1\n  image: i\n"), "spec.containers[1].name"},
		{withSpec("containers:\n- name: c\n"), "spec.containers[0].image"},
		{withSpec("containers: []\n"), "spec.containers: missing"},
		{strings.Replace(withSpec(one), "name: p", "name: P!", 1), "metadata.name"},
		{strings.Replace(withSpec(one), "u-1", "../u", 1), "metadata.uid"},
		{withSpec(one + "  ports: [{containerPort: 70000}]\n"), "containerPort: 70000"},
		{withSpec(one + "  ports: [{containerPort: 80, hostPort: 1}, {containerPort: 81, hostPort: 1}]\n"), "taken"},
		{withSpec(one + "  ports: [{containerPort: 80, hostPort: 81}]\nhostNetwork: true\n"), "differs from containerPort"},
		{withSpec(one + "  volumeMounts: [{name: v, mountPath: /v}]\n"), `there is no volume "v"`},
		{withSpec(one + "  volumeMounts: [{name: v, mountPath: /v, bindMountOptions: [noexec, exec]}]\n" +
			"volumes: [{name: v, emptyDir: {}}]\n"), `volumeMounts[0].bindMountOptions[1]: "exec" is none of`},
		{withSpec(one + "  volumeMounts: [{name: v, mountPath: /v, readOnly: true, recursiveReadOnly: Sometimes}]\n" +
			"volumes: [{name: v, emptyDir: {}}]\n"), `volumeMounts[0].recursiveReadOnly: "Sometimes" is none of`},
		{withSpec(one + "  volumeMounts: [{name: v, mountPath: /v, recursiveReadOnly: IfPossible}]\n" +
			"volumes: [{name: v, emptyDir: {}}]\n"), "volumeMounts[0].recursiveReadOnly: needs readOnly"},
		{withSpec(one + "  volumeMounts: [{name: v, mountPath: /v, readOnly: true, recursiveReadOnly: Enabled,\n" +
			"    mountPropagation: HostToContainer}]\nvolumes: [{name: v, emptyDir: {}}]\n"),
			"volumeMounts[0].recursiveReadOnly: needs mountPropagation: None"},
		{withSpec(one + "  volumeMounts: [{name: v, mountPath: /v, subPath: ../x}]\nvolumes: [{name: v, emptyDir: {}}]\n"),
			"not a path inside"},
		{withSpec(one + "  resources: {requests: {cpu: 2}, limits: {cpu: 1}}\n"), "more than the limit"},
		{withSpec(one + "hostPID: true\nshareProcessNamespace: true\n"), "shareProcessNamespace"},
		{withSpec(one + "dnsPolicy: None\n"), "spec.dnsConfig.nameservers: missing"},
		{withSpec(one + "volumes: [{name: v, hostPath: {path: /a/../b}}]\n"), "holds .."},
		{withSpec(one + "volumes: [{name: v, image: {pullPolicy: Always}}]\n"), "spec.volumes[0].image.reference"},
		{withSpec(one + "volumes: [{name: v, persistentVolumeClaim: {claimName: A_b}}]\n"), "claimName"},
		{withSpec(one + "  volumeMounts: [{name: v, mountPath: /v, subPath: x}]\n" +
			"volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]\n"), "volumeMounts[0].subPath: not supported"},
		{"apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c}\nspec: {volumeMode: Block}\n", "spec.volumeMode"},
		{withSpec(one + "hostUsers: false\nhostNetwork: true\n"), "spec.hostUsers"},
		{withSpec(one + "  securityContext: {procMount: Unmasked}\n"),
			"spec.containers[0].securityContext.procMount: hostUsers must be false to use Unmasked"},
		{withSpec(one + "  securityContext: {procMount: Unmasked}\nhostUsers: true\n"), "hostUsers must be false"},
		{withSpec(one + "restartPolicy: Sometimes\n"), "spec.restartPolicy"},
		{withSpec(one + "  livenessProbe: {periodSeconds: 3}\n"), "spec.containers[0].livenessProbe: has one of"},
		{withSpec(one + "  livenessProbe: {httpGet: {port: web}}\n"),
			"livenessProbe.httpGet.port: the container has no port"},
		{withSpec(one + "  livenessProbe: {tcpSocket: {port: 80}, successThreshold: 2}\n"), "livenessProbe.successThreshold"},
		{withSpec(one + "  startupProbe: {exec: {command: []}}\n"), "startupProbe.exec.command: missing"},
		{withSpec(one + "  lifecycle: {preStop: {tcpSocket: {port: 80}}}\n"), "lifecycle.preStop.tcpSocket"},
		{withSpec(one + "initContainers:\n- {name: i, image: i, livenessProbe: {grpc: {port: 80}}}\n"),
			"spec.initContainers[0].livenessProbe: is not for an init container"},
		{withSpec(one + "  securityContext: {seccompProfile: {type: Localhost, localhostProfile: /etc/x}}\n"),
			"localhostProfile"},
		{withSpec(one + "  securityContext: {privileged: true, allowPrivilegeEscalation: false}\n"),
			"allowPrivilegeEscalation"},
		{withSpec(one + "securityContext: {fsGroup: -1}\n"), "spec.securityContext.fsGroup: -1 is not in 0-2147483647"},
		{withSpec(one + "securityContext: {supplementalGroups: [1, 4294967296]}\n"), "supplementalGroups[1]: 4294967296"},
		{withSpec(one + "securityContext: {runAsUser: 2147483648}\n"), "spec.securityContext.runAsUser: 2147483648"},
		{withSpec(one + "  securityContext: {runAsGroup: -2}\n"), "spec.containers[0].securityContext.runAsGroup: -2"},
		{withSpec(one + "securityContext: {fsGroupChangePolicy: Never}\n"),
			`fsGroupChangePolicy: "Never" is neither Always nor OnRootMismatch`},
		{withSpec(one + "securityContext: {supplementalGroupsPolicy: strict}\n"), `supplementalGroupsPolicy: "strict" is`},
		{withSpec(one + "  env: [{name: A, valueFrom: {}}]\n"), "spec.containers[0].env[0].valueFrom: has 0 sources"},
		{withSpec(one + "  env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name},\n" +
			"    secretKeyRef: {name: s, key: k, optional: true}}}]\n"), "spec.containers[0].env[0].valueFrom: has 2 sources"},
		{withSpec(one + "volumes: [{name: v, projected: {sources: [{}]}}]\n"), "projected.sources[0]: has 0 sources"},
		{withSpec(one + "volumes: [{name: v, projected: {sources: [{configMap: {name: a, optional: true},\n" +
			"  secret: {name: b, optional: true}}]}}]\n"), "projected.sources[0]: has 2 sources"},
		{withSpec(one + "  ports: [{name: a, containerPort: 80}, {name: a, containerPort: 81}]\n"),
			`spec.containers[0].ports[1].name: "a" appears twice`},
		{withSpec(one + "  ports: [{name: A_b, containerPort: 80}]\n"), `spec.containers[0].ports[0].name: "A_b"`},
		{withSpec(one+"  env: [{name: A, valueFrom: {configMapKeyRef: {name: m, key: k}}}]\n") +
			"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\nbinaryData: {k: AAAA}\n",
			`spec.containers[0].env[0].valueFrom.configMapKeyRef.key: ConfigMap m has key "k" in binaryData`},
		{withSpec(one + "securityContext: {sysctls: [{name: a.b, value: one}, {name: a/b, value: two}]}\n"),
			`spec.securityContext.sysctls[1].name: "a/b" is missing or appears twice`},
		{withSpec(one + "  livenessProbe: {tcpSocket: {port: 80}, terminationGracePeriodSeconds: 0}\n"),
			"livenessProbe.terminationGracePeriodSeconds: 0 is not positive"},
		{withSpec(one + "  lifecycle: {stopSignal: SIGFOO}\n"), "SIGFOO"},
		{strings.Repeat("# x\n", 5<<20), "larger than"},
	} {
		if _, err := decodePods(strings.NewReader(c.text), Options{}); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("want an error with %q, got %v", c.says, err)
		}
	}
}

func TestEnvironmentRefersToPodNodeAndResources(t *testing.T) {
	p := decode(t, one+`  command: [run, $(A), $(NONE), $$(A), "100$"]
  resources: {limits: {cpu: 1500m, memory: 64Mi}}
  env:
  - {name: A, value: a}
  - {name: B, value: "$(A)-$(LATER)"}
  - {name: LATER, value: x}
  - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  - {name: APP, valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}}
  - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
  - {name: IPS, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}
  - {name: HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
  - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
  - {name: CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
  - {name: MILLI, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}
  - {name: MEM, valueFrom: {resourceFieldRef: {resource: requests.memory, divisor: 1Mi}}}
`)
	config := translate(t, p)
	got := map[string]string{}
	var order []string
	for _, env := range config.Envs {
		got[env.Key] = string(env.Value)
		order = append(order, env.Key)
	}
	for name, want := range map[string]string{
		"A": "a", "B": "a-$(LATER)", "NAME": "p", "APP": "shop", "IP": "10.0.0.2", "IPS": "10.0.0.2,fd00::2",
		"HOST": "192.0.2.7", "NODE": "node1", "CPU": "2", "MILLI": "1500", "MEM": "64",
	} {
		if got[name] != want {
			t.Errorf("%s = %q, want %q", name, got[name], want)
		}
	}
	if order[0] != "A" || order[len(order)-1] != "MEM" {
		t.Errorf("order %v", order)
	}
	if want := []string{"run", "a", "$(NONE)", "$(A)", "100$"}; !slices.Equal(config.Command, want) {
		t.Errorf("command %q, want %q", config.Command, want)
	}
}

// TestASubPathExprHasNoUnknownVariables: a directory with the name of the reference would be made instead.
func TestASubPathExprHasNoUnknownVariables(t *testing.T) {
	p := decode(t, one+"  env: [{name: A, value: a}, {name: B, value: b/c}]\n")
	env, err := p.Environment(&p.Spec.Containers[0], testHost, nil)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"x/$(A)/$(B)": "x/a/b/c", "$$(A)": "$(A)", "$A": "$A", "$(NONE)": "error", "$(A)/$(NONE)/$(A)": "error",
	} {
		got, err := env.ExpandPath(text)
		if err != nil {
			got = "error"
			if !strings.Contains(err.Error(), "no variable NONE") {
				t.Errorf("%s: %v", text, err)
			}
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// TestPathsWithoutARootBeginThere: the CRI takes absolute paths only, and a kubelet makes them so.
func TestPathsWithoutARootBeginThere(t *testing.T) {
	c := decode(t, one+"  terminationMessagePath: tmp/why\n  volumeMounts: [{name: v, mountPath: data}]\n"+
		"volumes: [{name: v, emptyDir: {}}]\n").Spec.Containers[0]
	if c.TerminationMessagePath != "/tmp/why" || c.VolumeMounts[0].MountPath != "/data" {
		t.Errorf("%q and %q", c.TerminationMessagePath, c.VolumeMounts[0].MountPath)
	}
	if got := MessagePath(&decode(t, one).Spec.Containers[0]); got != "/dev/termination-log" {
		t.Errorf("without a path: %q", got)
	}
}

func TestLimitsOfAContainerWithoutOneAreTheNodes(t *testing.T) {
	p := decode(t, one+"  env: [{name: M, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Gi}}}]\n")
	if got := string(translate(t, p).Envs[0].Value); got != "8" {
		t.Fatalf("got %s", got)
	}
}

func TestResourcesAreComputedAsAKubeletDoes(t *testing.T) {
	for _, c := range []struct {
		resources                          string
		shares, quota, period, memory, oom int64
	}{
		{"{}", 2, 0, 0, 0, 1000},
		{"{requests: {cpu: 250m}}", 256, 0, 0, 0, 999},
		{"{limits: {cpu: 500m, memory: 64Mi}}", 512, 50_000, 100_000, 64 << 20, -997},
		{"{limits: {cpu: 1m}}", 2, 1000, 100_000, 0, 999},
		{"{requests: {cpu: 1, memory: 4Gi}, limits: {memory: 6Gi}}", 1024, 0, 0, 6 << 30, 500},
		{"{requests: {memory: 8Gi}}", 2, 0, 0, 0, 3},
	} {
		r := translate(t, decode(t, one+"  resources: "+c.resources+"\n")).Linux.Resources
		if r.CpuShares != c.shares || r.CpuQuota != c.quota || r.CpuPeriod != c.period || r.MemoryLimitInBytes != c.memory ||
			r.OomScoreAdj != c.oom {
			t.Errorf("%s: got %v", c.resources, r)
		}
	}
	r := translate(t, decode(t, one+"  resources: {limits: {hugepages-2Mi: 4Mi, memory: 1Gi, cpu: 1}}\n")).Linux.Resources
	if len(r.HugepageLimits) != 1 || r.HugepageLimits[0].PageSize != "2MB" || r.HugepageLimits[0].Limit != 4<<20 {
		t.Errorf("huge pages: %v", r.HugepageLimits)
	}
}

// TestVolumesInMemoryAreAsLargeAsTheirPod: a program that looks at the size of its volume is not told more than what
// the pod may use.
func TestVolumesInMemoryAreAsLargeAsTheirPod(t *testing.T) {
	limited := "  resources: {limits: {memory: 64Mi}}\n"
	for _, c := range []struct {
		spec string
		want int64
	}{
		{one, 8 << 30},
		{one + limited, 64 << 20},
		{one + limited + "- {name: d, image: i}\n", 8 << 30},
		{one + limited + "- {name: d, image: i, resources: {limits: {memory: 1Mi}}}\n", 65 << 20},
		{one + limited + "initContainers: [{name: i, image: i}]\n", 8 << 30},
		{one + limited + "initContainers: [{name: i, image: i, resources: {limits: {memory: 1Gi}}}]\n", 1 << 30},
		{one + limited + "initContainers:\n" +
			"- {name: s, image: i, restartPolicy: Always, resources: {limits: {memory: 1Mi}}}\n" +
			"- {name: i, image: i, resources: {limits: {memory: 80Mi}}}\n", 81 << 20},
		{one + "  resources: {limits: {memory: 1Ti}}\n", 8 << 30},
	} {
		if got := decode(t, c.spec).MemoryOfVolumes(testHost); got != c.want {
			t.Errorf("%s: %d, want %d", c.spec, got, c.want)
		}
	}
}

func TestSecurityIsTheDefaultAndTheContainersWordCounts(t *testing.T) {
	plain := translate(t, decode(t, one)).Linux.SecurityContext
	if plain.Seccomp.ProfileType != cri.SecurityProfile_RuntimeDefault || len(plain.MaskedPaths) == 0 ||
		len(plain.ReadonlyPaths) == 0 ||
		plain.NoNewPrivs || plain.Privileged || plain.RunAsUser != nil {
		t.Errorf("plain: %v", plain)
	}
	s := translate(t, decode(t, one+`  securityContext:
    runAsUser: 7
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {add: [NET_ADMIN], drop: [ALL]}
    seccompProfile: {type: Localhost, localhostProfile: a/b.json}
securityContext: {runAsUser: 5, runAsGroup: 6, supplementalGroups: [10], fsGroup: 20, supplementalGroupsPolicy: Strict}
`)).Linux.SecurityContext
	if s.RunAsUser.Value != 7 || s.RunAsGroup.Value != 6 || !s.NoNewPrivs || !s.ReadonlyRootfs ||
		!slices.Equal(s.SupplementalGroups, []int64{10, 20}) ||
		s.SupplementalGroupsPolicy != cri.SupplementalGroupsPolicy_Strict ||
		s.Seccomp.LocalhostRef != "/profiles/a/b.json" || s.Capabilities.DropCapabilities[0] != "ALL" {
		t.Errorf("got %v", s)
	}
	privileged := translate(t, decode(t, one+"  securityContext: {privileged: true}\n")).Linux.SecurityContext
	if !privileged.Privileged || privileged.Seccomp.ProfileType != cri.SecurityProfile_Unconfined ||
		privileged.MaskedPaths != nil {
		t.Errorf("privileged: %v", privileged)
	}
	unmasked := translate(t, decode(t, one+
		"  securityContext: {procMount: Unmasked}\nhostUsers: false\n")).Linux.SecurityContext
	if unmasked.MaskedPaths != nil {
		t.Errorf("unmasked: %v", unmasked)
	}
}

// TestAnnotationsNameAppArmorProfiles, as manifests from before Kubernetes 1.30 have them, of containers and of init
// containers. Seen to fail where they had no effect.
func TestAnnotationsNameAppArmorProfiles(t *testing.T) {
	const ofPod = "securityContext: {appArmorProfile: {type: Localhost, localhostProfile: pods}}\n"
	ofContainer := func(profile string) string { return one + "  securityContext: {appArmorProfile: " + profile + "}\n" }
	for _, c := range []struct{ spec, name, value, want string }{
		{one, "c", "localhost/strict", "Localhost strict"},
		{one, "c", "runtime/default", "RuntimeDefault "},
		{one, "c", "unconfined", "Unconfined "},
		{one, "c", "", "none"},
		{one + ofPod, "c", "localhost/strict", "Localhost strict"},
		{one + ofPod, "c", "", "Localhost pods"},
		{one + ofPod + "initContainers: [{name: i, image: 'i:1'}]\n", "i", "unconfined", "Localhost pods"},
		{one + "initContainers: [{name: i, image: 'i:1'}]\n", "i", "unconfined", "none"},
		{ofContainer("{type: Localhost, localhostProfile: own}"), "c", "localhost/own", "Localhost own"},
		{ofContainer("{type: Localhost, localhostProfile: own}"), "c", "localhost/strict",
			`"localhost/strict" is not the container's appArmorProfile`},
		{ofContainer("{type: Unconfined}"), "c", "runtime/default",
			`"runtime/default" is not the container's appArmorProfile`},
		{one, "c", "strict", `"strict" is none of runtime/default, unconfined and localhost/NAME`},
		{one, "c", "localhost/", `"localhost/" is none of runtime/default, unconfined and localhost/NAME`},
		{one, "c", "localhost/ a", `"localhost/ a" is none of runtime/default, unconfined and localhost/NAME`},
		{one, "d", "unconfined", `the pod has no container "d"`},
	} {
		const key = "container.apparmor.security.beta.kubernetes.io/"
		text := strings.Replace(withSpec(c.spec), "uid: u-1", "annotations: {"+key+c.name+": '"+c.value+"'}", 1)
		pods, err := decodePods(strings.NewReader(text), Options{})
		var got string
		switch {
		case err != nil:
			got = strings.TrimPrefix(err.Error(), "document 1: pod p: metadata.annotations["+key+c.name+"]: ")
		default:
			profile := translate(t, pods[0]).Linux.SecurityContext.Apparmor
			if got = "none"; profile != nil {
				got = profile.ProfileType.String() + " " + profile.LocalhostRef
			}
			for _, init := range pods[0].Spec.InitContainers {
				if p := security(&init).AppArmorProfile; p == nil || p.Type != corev1.AppArmorProfileTypeUnconfined {
					t.Errorf("%s: the init container has %v", c.spec, p)
				}
			}
		}
		if got != c.want {
			t.Errorf("%s with %q of %s: got %s, want %s", c.spec, c.value, c.name, got, c.want)
		}
	}
}

// TestAGroupWithoutAUserIsBesideTheImages: the CRI refuses a group alone, and a kubelet adds the user of the image.
func TestAGroupWithoutAUserIsBesideTheImages(t *testing.T) {
	for _, c := range []struct {
		image *cri.Image
		uid   *int64
		name  string
	}{
		{&cri.Image{Uid: &cri.Int64Value{Value: 33}, Username: "x"}, new(int64(33)), ""},
		{&cri.Image{Username: "www"}, nil, "www"}, {&cri.Image{}, new(int64), ""}, {nil, new(int64), ""},
	} {
		for _, spec := range []string{
			one + "securityContext: {runAsGroup: 6}\n", one + "  securityContext: {runAsGroup: 6}\n",
		} {
			p := decode(t, spec)
			s := p.containerSecurity(&p.Spec.Containers[0], testHost, c.image)
			if s.RunAsGroup.GetValue() != 6 || s.RunAsUsername != c.name || (s.RunAsUser == nil) != (c.uid == nil) ||
				c.uid != nil && s.RunAsUser.Value != *c.uid {
				t.Errorf("%v: got %v", c.image, s)
			}
		}
	}
	s := translate(t, decode(t, one+"  securityContext: {runAsUser: 7}\nsecurityContext: {runAsGroup: 6}\n"))
	if got := s.Linux.SecurityContext; got.RunAsUser.GetValue() != 7 || got.RunAsGroup.GetValue() != 6 {
		t.Errorf("with a user: %v", got)
	}
	if got := translate(t, decode(t, one)).Linux.SecurityContext; got.RunAsUser != nil || got.RunAsUsername != "" {
		t.Errorf("without a group: %v", got)
	}
}

func TestNonRootIsChecked(t *testing.T) {
	for _, c := range []struct {
		security string
		image    *cri.Image
		good     bool
	}{
		{"{}", &cri.Image{}, true},
		{"{runAsNonRoot: true}", &cri.Image{}, false},
		{"{runAsNonRoot: true}", &cri.Image{Uid: &cri.Int64Value{Value: 0}}, false},
		{"{runAsNonRoot: true}", &cri.Image{Uid: &cri.Int64Value{Value: 9}}, true},
		{"{runAsNonRoot: true}", &cri.Image{Username: "app"}, false},
		{"{runAsNonRoot: true, runAsUser: 3}", &cri.Image{Username: "app"}, true},
		{"{runAsNonRoot: true, runAsUser: 0}", &cri.Image{Uid: &cri.Int64Value{Value: 9}}, false},
	} {
		p := decode(t, one+"securityContext: "+c.security+"\n")
		if err := p.CheckNonRoot(&p.Spec.Containers[0], c.image); (err == nil) != c.good {
			t.Errorf("%s with %v: %v", c.security, c.image, err)
		}
	}
}

func TestSandboxHasPortsNamespacesAndNames(t *testing.T) {
	p := decode(t,
		one+"  ports: [{containerPort: 80, hostPort: 8080, protocol: UDP, hostIP: 127.0.0.1}, {containerPort: 81}]\n")
	config, err := p.Sandbox(testHost, "/logs", "/dir")
	if err != nil {
		t.Fatal(err)
	}
	want := []*cri.PortMapping{
		{Protocol: cri.Protocol_UDP, ContainerPort: 80, HostPort: 8080, HostIp: "127.0.0.1"},
		{Protocol: cri.Protocol_TCP, ContainerPort: 81},
	}
	for i := range want {
		if config.PortMappings[i].String() != want[i].String() {
			t.Errorf("port %d: %v", i, config.PortMappings[i])
		}
	}
	if config.Hostname != "p" || config.Labels[LabelPodUID] != "u-1" || config.Labels["app"] != "shop" ||
		config.LogDirectory != "/logs" ||
		config.Annotations[AnnotationGracePeriod] != "30" || config.DnsConfig != nil {
		t.Errorf("got %v", config)
	}
	host, err := decode(t, one+"hostNetwork: true\nhostIPC: true\nshareProcessNamespace: true\nruntimeClassName: crun\n").
		Sandbox(testHost, "", "")
	if err != nil {
		t.Fatal(err)
	}
	ns := host.Linux.SecurityContext.NamespaceOptions
	if host.Hostname != "" || host.PortMappings != nil || ns.Network != cri.NamespaceMode_NODE ||
		ns.Ipc != cri.NamespaceMode_NODE || ns.Pid != cri.NamespaceMode_POD {
		t.Errorf("got %v", host)
	}
}

func TestAPodWithAUserNamespaceSaysWhichIDs(t *testing.T) {
	p := decode(t, one+"hostUsers: false\n")
	p.FirstID = 131072
	sandbox, err := p.Sandbox(testHost, "", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, options := range []*cri.NamespaceOption{sandbox.Linux.SecurityContext.NamespaceOptions,
		translate(t, p).Linux.SecurityContext.NamespaceOptions} {
		user := options.UsernsOptions
		if user.GetMode() != cri.NamespaceMode_POD || len(user.Uids) != 1 || len(user.Gids) != 1 ||
			user.Uids[0].HostId != 131072 || user.Gids[0].Length != 65536 {
			t.Errorf("got %v", user)
		}
	}
	if decode(t, one+"hostUsers: true\n").namespaces().UsernsOptions != nil {
		t.Error("hostUsers: true has a user namespace")
	}
	if NamedVolume("default", "c") != "c" || NamedVolume("n", "c") != "n_c" {
		t.Error("names of volumes")
	}
}

func TestLongNamesAreCutForTheKernel(t *testing.T) {
	p := decode(t, one)
	p.Name = strings.Repeat("a", 62) + ".b"
	if got := p.hostname(); got != strings.Repeat("a", 62) {
		t.Errorf("got %q", got)
	}
}

func TestDNSConfigAddsToTheNodes(t *testing.T) {
	config, err := decode(t, one+"dnsConfig: {nameservers: [1.1.1.1, 9.9.9.9], searches: [a.b], options: [{name: "+
		"ndots, value: '5'}, {name: rotate}]}\n").dns(testHost.ResolvConf)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(config.Servers, []string{"9.9.9.9", "1.1.1.1"}) ||
		!slices.Equal(config.Searches, []string{"example.org", "a.b"}) ||
		!slices.Equal(config.Options, []string{"edns0", "ndots:5", "rotate"}) {
		t.Errorf("got %v", config)
	}
	only, err := decode(t, one+"dnsPolicy: None\ndnsConfig: {nameservers: [1.1.1.1]}\n").dns(testHost.ResolvConf)
	if err != nil || !slices.Equal(only.Servers, []string{"1.1.1.1"}) || only.Searches != nil {
		t.Errorf("got %v, %v", only, err)
	}
}

// TestDNSConfigAddsToServersThatThePodReaches: a pod in the node's network has the node's, with a stub on a loopback
// address. Seen to fail when both had the same file.
func TestDNSConfigAddsToServersThatThePodReaches(t *testing.T) {
	host := *testHost
	host.NodeResolvConf = []byte("nameserver 127.0.0.53\n")
	for spec, want := range map[string]string{"": "9.9.9.9", "hostNetwork: true\n": "127.0.0.53"} {
		config, err := decode(t, one+spec+"dnsConfig: {nameservers: [1.1.1.1]}\n").Sandbox(&host, "/logs", "/dir")
		if err != nil {
			t.Fatal(err)
		}
		if got := config.DnsConfig.Servers; !slices.Equal(got, []string{want, "1.1.1.1"}) {
			t.Errorf("with %q it has %q", spec, got)
		}
	}
}

func TestHostAliasesAreInTheHostsFile(t *testing.T) {
	p := decode(t, one+"hostAliases: [{ip: 10.1.1.1, hostnames: [db, cache]}]\n")
	got := string(p.HostsFile([]string{"10.0.0.2"}, nil))
	for _, want := range []string{"127.0.0.1\tlocalhost\n", "10.0.0.2\tp\n", "10.1.1.1\tdb\tcache\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
	if decode(t, one).HostsFile(nil, nil) != nil {
		t.Error("a pod without aliases needs no file")
	}
}

func TestPullPolicyFollowsTheTag(t *testing.T) {
	for image, want := range map[string]corev1.PullPolicy{
		"a": corev1.PullAlways, "a:latest": corev1.PullAlways, "h:5000/a": corev1.PullAlways, "a:1": corev1.PullIfNotPresent,
		"h:5000/a:1": corev1.PullIfNotPresent, "a@sha256:00": corev1.PullIfNotPresent,
	} {
		if got := defaultPullPolicy(image); got != want {
			t.Errorf("%s: %s", image, got)
		}
	}
}

func TestRestartPoliciesOfPodsHoldForTheirContainers(t *testing.T) {
	for policy, want := range map[string]string{
		"":                           "first=Never proxy=Always c=Never",
		"restartPolicy: Never\n":     "first=Never proxy=Always c=Never",
		"restartPolicy: OnFailure\n": "first=OnFailure proxy=Always c=OnFailure",
		"restartPolicy: Always\n":    "first=OnFailure proxy=Always c=Always",
	} {
		p := decode(t, one+policy+
			"initContainers:\n- {name: first, image: i}\n- {name: proxy, image: i, restartPolicy: Always}\n")
		var got []string
		for c := range p.Containers() {
			got = append(got, fmt.Sprintf("%s=%s", c.Name, p.RestartPolicy(c)))
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%q: got %s, want %s", policy, text, want)
		}
	}
}

func TestInitContainersKnowWhatTheyAre(t *testing.T) {
	p := decode(t, one+"initContainers:\n- {name: first, image: i}\n- {name: proxy, image: i, restartPolicy: Always}\n")
	var kinds []string
	for c := range p.Containers() {
		kinds = append(kinds, c.Name+"="+p.Kind(c))
	}
	if want := []string{"first=init", "proxy=sidecar", "c="}; !slices.Equal(kinds, want) {
		t.Errorf("got %v", kinds)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(withSpec(one))
	f.Add(withSpec(one) + "\n" + objectDocuments)
	for _, kind := range []string{"Deployment", "StatefulSet", "Job"} {
		f.Add(workloadOf(kind, selectsWeb, "restartPolicy: Always"))
	}
	f.Add("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n" +
		"spec: {containers: [{name: a, image: b, env: [{name: X, value: '$(Y'}]}]}\n")
	f.Fuzz(func(t *testing.T, text string) {
		pods, err := decodePods(strings.NewReader(text), Options{IgnoreUnsupported: true})
		if err != nil {
			return
		}
		for _, p := range pods {
			if _, err := p.Sandbox(testHost, "/l", "/d"); err != nil {
				continue
			}
			for c := range p.Containers() {
				env, err := p.Environment(c, testHost, nil)
				if err != nil {
					continue
				}
				_, _ = p.Container(c, &Placement{Host: testHost, Env: env})
			}
		}
	})
}

func TestExtendedResourcesAreAskedForOnTheSandbox(t *testing.T) {
	p := decode(t, `initContainers:
- {name: i, image: "i:1", resources: {limits: {v.com/gpu: 1}}}
- {name: s, image: "i:1", restartPolicy: Always, resources: {limits: {v.com/gpu: "2"}}}
containers:
- {name: c, image: "i:1", resources: {limits: {v.com/gpu: 3, v.com/nic: 1, cpu: 1}, requests: {v.com/gpu: 3}}}
- {name: none, image: "i:1", resources: {limits: {v.com/gpu: 0}}}
`)
	config, err := p.Sandbox(&Host{}, "/logs", "/dir")
	if err != nil {
		t.Fatal(err)
	}
	asks, err := device.Asks(config.Annotations)
	if err != nil {
		t.Fatal(err)
	}
	want := "[{i init map[v.com/gpu:1]} {s sidecar map[v.com/gpu:2]} {c  map[v.com/gpu:3 v.com/nic:1]}]"
	if got := fmt.Sprint(asks); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for text, says := range map[string]string{
		"{limits: {v.com/gpu: 1.5}}":                         "limits.v.com/gpu",
		"{requests: {v.com/gpu: 1}}":                         "requests.v.com/gpu",
		"{limits: {v.com/gpu: 2}, requests: {v.com/gpu: 1}}": "not overcommitted",
		"{limits: {v.com/gpu: -1}}":                          "negative",
		"{limits: {v.com/gpu: 99999999999}}":                 "not a number of devices",
		"{limits: {kubernetes.io/batch-cpu: 1}}":             "kubernetes.io/batch-cpu",
	} {
		_, err := decodePods(strings.NewReader(withSpec("containers:\n- {name: c, image: \"i:1\", resources: "+text+"}\n")),
			Options{})
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if config, err := decode(t, "containers:\n- {name: c, image: \"i:1\"}\n").Sandbox(&Host{},
		"/logs", "/dir"); err != nil || config.Annotations[device.Annotation] != "" {
		t.Errorf("without: %v, %v", config, err)
	}
}

// TestALastLineWithoutAnEndIsRead, whatever its length is. Seen to fail, with a pod that was left out, without the end
// of line that file adds.
func TestALastLineWithoutAnEndIsRead(t *testing.T) {
	text := func(name string) string {
		return `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "` + name + `"}, "spec": {"containers": ` +
			`[{"name": "c", "image": "i"}]}}`
	}
	for _, length := range []int{4095, 4096, 4097, 2 * 4096} {
		last := text("b")
		last += strings.Repeat(" ", length-len(last))
		pods, err := decodePods(strings.NewReader(text("a")+"\n---\n"+last), Options{})
		if err != nil || len(pods) != 2 {
			t.Errorf("a line of %d bytes: %d pods, %v", length, len(pods), err)
		}
	}
}

// TestAliasesOfLongTextsAreRefused: the document is a megabyte, and as JSON it would be a hundred gigabytes. Seen to
// fail, by running out of memory, without checkAliases.
func TestAliasesOfLongTextsAreRefused(t *testing.T) {
	bomb := "a: &a " + strings.Repeat("x", 1<<20) + "\nb: [" + strings.Repeat("*a,", 100_000) + "]\n"
	if _, err := decodePods(strings.NewReader(bomb), Options{}); err == nil || !strings.Contains(err.Error(), "aliases") {
		t.Error(err)
	}
	for _, text := range []string{"a: &a [*a]\n", "a: &a {b: *a}\n"} {
		if _, err := decodePods(strings.NewReader(text), Options{}); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	good := `apiVersion: v1
kind: Pod
metadata: {name: &name p, labels: {app: *name}}
spec: {containers: [{name: *name, image: i}]}
`
	if pods, err := decodePods(strings.NewReader(good), Options{}); err != nil || pods[0].Labels["app"] != "p" {
		t.Error(err)
	}
}
