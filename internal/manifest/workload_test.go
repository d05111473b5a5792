package manifest

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// workloadOf is a document with a template of pods.
func workloadOf(kind, spec, template string) string {
	version := "apps/v1"
	if kind == "Job" {
		version = "batch/v1"
	}
	return "apiVersion: " + version + "\nkind: " + kind + "\nmetadata: {name: web, namespace: shop, generation: 3}\n" +
		"spec:\n" + spec + "  template:\n    metadata: {labels: {app: web}}\n    spec:\n      " + template +
		"\n      containers: [{name: c, image: i}]\nstatus: {}\n"
}

const selectsWeb = "  selector: {matchLabels: {app: web}}\n"

func group(t *testing.T, text string) *Group {
	t.Helper()
	documents, err := DecodeFiles([]File{{In: strings.NewReader(text)}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(documents.Groups) != 1 {
		t.Fatalf("got %d groups", len(documents.Groups))
	}
	return documents.Groups[0]
}

func TestWorkloadsMakePodsAsTheirControllersDo(t *testing.T) {
	const suffix = "[bcdfghjklmnpqrstvwxz2456789]{5}$"
	for _, c := range []struct{ kind, spec, names, label string }{
		{"Deployment", selectsWeb + "  replicas: 3\n  strategy: {type: Recreate}\n",
			"^web-[a-z0-9]+-" + suffix, "pod-template-hash"},
		{"ReplicaSet", selectsWeb + "  replicas: 3\n", "^web-" + suffix, "app"},
		{"DaemonSet", selectsWeb + "  updateStrategy: {type: OnDelete}\n", "^web-" + suffix, "controller-revision-hash"},
		{"StatefulSet", selectsWeb + "  replicas: 3\n  serviceName: s\n  ordinals: {start: 5}\n", "^web-[567]$",
			"statefulset.kubernetes.io/pod-name"},
	} {
		g := group(t, workloadOf(c.kind, c.spec, "restartPolicy: Always"))
		want := 3
		if c.kind == "DaemonSet" {
			want = 1
		}
		var names []string
		for _, p := range g.Pods {
			names = append(names, p.Name)
			if !regexp.MustCompile(c.names).MatchString(p.Name) || p.Labels[c.label] == "" || p.Namespace != "shop" ||
				p.Labels["app"] != "web" || p.Owner.String() != c.kind+"/shop/web" ||
				p.RestartPolicy(&p.Spec.Containers[0]) != corev1.RestartPolicyAlways {
				t.Errorf("%s: pod %s with %v of %s", c.kind, p.Name, p.Labels, p.Owner)
			}
		}
		slices.Sort(names)
		if len(slices.Compact(names)) != want {
			t.Errorf("%s: got %q", c.kind, names)
		}
		if g.Ordered != (c.kind == "StatefulSet") {
			t.Errorf("%s: ordered: %v", c.kind, g.Ordered)
		}
	}
	first, second := group(t, workloadOf("Deployment", selectsWeb, "hostPID: true")),
		group(t, workloadOf("Deployment", selectsWeb, "hostPID: true"))
	other := group(t, workloadOf("Deployment", selectsWeb, "hostIPC: true"))
	hash := func(g *Group) string { return g.Pods[0].Labels["pod-template-hash"] }
	if hash(first) != hash(second) || hash(first) == hash(other) {
		t.Errorf("hashes: %s, %s and %s", hash(first), hash(second), hash(other))
	}
}

func TestAStatefulSetsPodsHaveNamesAndClaimsOfTheirOwn(t *testing.T) {
	g := group(t, workloadOf("StatefulSet", selectsWeb+"  replicas: 2\n  podManagementPolicy: Parallel\n"+
		"  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce]}}]\n",
		"volumes: [{name: data, emptyDir: {}}]"))
	p := g.Pods[1]
	if g.Ordered || p.hostname() != "web-1" || len(p.Spec.Volumes) != 1 ||
		p.Spec.Volumes[0].PersistentVolumeClaim.ClaimName != "data-web-1" || p.Spec.Volumes[0].EmptyDir != nil {
		t.Errorf("got %v", p.Spec)
	}
}

func TestAJobMakesPodsForItsCompletions(t *testing.T) {
	g := group(t, workloadOf("Job", "  completions: 5\n  parallelism: 2\n  completionMode: Indexed\n  backoffLimit: 1\n",
		"restartPolicy: OnFailure"))
	if len(g.Pods) != 2 || g.Job.Completions != 5 || g.Job.Parallelism != 2 || g.Job.BackoffLimit != 1 {
		t.Errorf("got %+v", g.Job)
	}
	p, err := g.Job.Pod(4)
	if err != nil {
		t.Fatal(err)
	}
	config := translate(t, p)
	if !strings.HasPrefix(p.Name, "web-4-") || p.hostname() != "web-4" || p.Restarts.Most != 1 ||
		p.Labels["batch.kubernetes.io/job-name"] != "web" || len(config.Envs) != 1 ||
		config.Envs[0].Key != "JOB_COMPLETION_INDEX" || string(config.Envs[0].Value) != "4" {
		t.Errorf("got %v, %v", p, config.Envs)
	}
	if g := group(t, workloadOf("Job", "", "restartPolicy: Never")); g.Job.Completions != 1 || g.Job.BackoffLimit != 6 ||
		g.Pods[0].Restarts != nil {
		t.Errorf("got %+v", g.Job)
	}
}

func TestWorkloadsAreRefusedByThePathOfTheField(t *testing.T) {
	for _, c := range []struct{ kind, spec, template, says string }{
		{"Deployment", selectsWeb + "  paused: true\n", "hostPID: false", "Deployment web: spec.paused: is not supported"},
		{"Deployment", "  selector: {matchLabels: {app: x}}\n", "hostPID: false", "spec.selector: does not select"},
		{"Deployment", selectsWeb + "  replicas: -1\n", "hostPID: false", "spec.replicas: -1"},
		{"Deployment", selectsWeb, "restartPolicy: Never", "spec.template.spec.restartPolicy"},
		{"Deployment", selectsWeb, "schedulingGates: [{name: g}]", "  spec.template.spec.schedulingGates"},
		{"StatefulSet", selectsWeb + "  podManagementPolicy: Other\n", "hostPID: false", "spec.podManagementPolicy"},
		{"StatefulSet", selectsWeb + "  persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete}\n", "hostPID: false",
			"persistentVolumeClaimRetentionPolicy.whenDeleted"},
		{"StatefulSet", selectsWeb + "  persistentVolumeClaimRetentionPolicy: {whenScaled: Delete}\n", "hostPID: false",
			"persistentVolumeClaimRetentionPolicy.whenScaled: Delete"},
		{"StatefulSet", selectsWeb + "  persistentVolumeClaimRetentionPolicy: {whenScaled: Keep}\n", "hostPID: false",
			`persistentVolumeClaimRetentionPolicy.whenScaled: "Keep"`},
		{"StatefulSet", selectsWeb + "  volumeClaimTemplates: [{metadata: {name: d}, spec: {volumeMode: Block}}]\n",
			"hostPID: false", "spec.volumeClaimTemplates[0].spec.volumeMode"},
		{"Job", "", "hostPID: false", "spec.template.spec.restartPolicy"},
		{"Job", "  suspend: true\n", "restartPolicy: Never", "spec.suspend: is not supported"},
		{"Job", "  podFailurePolicy: {rules: []}\n", "restartPolicy: Never", "spec.podFailurePolicy: is not supported"},
		{"Job", "  completionMode: Indexed\n", "restartPolicy: Never", "spec.completions: missing"},
		{"Job", "  parallelism: 0\n", "restartPolicy: Never", "spec.parallelism: 0"},
	} {
		_, err := decodePods(strings.NewReader(workloadOf(c.kind, c.spec, c.template)), Options{})
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: want an error with %q, got %v", c.kind, c.says, err)
		}
	}
}
