package manifest

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// hashOf is the hash of the first pod of documents.
func hashOf(t *testing.T, text string) string {
	t.Helper()
	pods, err := decodePods(strings.NewReader(text), Options{RestartPolicy: corev1.RestartPolicyAlways})
	if err != nil {
		t.Fatal(err)
	}
	hash, err := pods[0].Hash()
	if err != nil {
		t.Fatal(err)
	}
	return hash
}

func TestAHashIsThatOfADocumentAndWhatItRefersTo(t *testing.T) {
	const configMap = "\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {a: one}\n"
	const other = "\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\ndata: {a: one}\n"
	const generated = "apiVersion: v1\nkind: Pod\nmetadata: {generateName: p-}\n" +
		"spec:\n  containers: [{name: c, image: i:1}]\n"
	pod := withSpec("containers:\n- name: c\n  image: i:1\n  envFrom: [{configMapRef: {name: m}}]\n")
	hash := hashOf(t, pod+configMap)
	for what, text := range map[string]string{
		"a comment":              "# new\n" + pod + configMap,
		"another UID":            strings.Replace(pod, "uid: u-1", "uid: u-2", 1) + configMap,
		"a ConfigMap of others":  pod + configMap + other,
		"a policy that is usual": pod + "  restartPolicy: Always\n" + configMap,
	} {
		if hashOf(t, text) != hash {
			t.Errorf("%s changes the hash", what)
		}
	}
	for what, text := range map[string]string{
		"another image":           strings.Replace(pod, "i:1", "i:2", 1) + configMap,
		"another label":           strings.Replace(pod, "app: shop", "app: shed", 1) + configMap,
		"another name":            strings.Replace(pod, "name: p", "name: q", 1) + configMap,
		"another ConfigMap value": pod + strings.Replace(configMap, "one", "two", 1),
	} {
		if hashOf(t, text) == hash {
			t.Errorf("%s does not change the hash", what)
		}
	}
	if first, second := hashOf(t, generated), hashOf(t, generated); first != second {
		t.Error("the name that is generated changes the hash")
	}
}

func TestAManifestCannotSayThatADirectoryKeepsItsPod(t *testing.T) {
	text := strings.Replace(withSpec(one), "labels:", "annotations: {"+AnnotationApplied+": /etc, "+AnnotationHash+
		": x, "+AnnotationFile+": f}\n  labels:", 1)
	pods, err := decodePods(strings.NewReader(text), Options{})
	if err != nil {
		t.Fatal(err)
	}
	config, err := pods[0].Sandbox(testHost, "/logs", "/dir")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{AnnotationApplied, AnnotationHash, AnnotationFile} {
		if value, ok := config.Annotations[key]; ok {
			t.Errorf("the sandbox has the annotation %s: %s", key, value)
		}
	}
	pods[0].Applied = &Applied{Directory: "/d", File: "f", Hash: "h"}
	config, err = pods[0].Sandbox(testHost, "/logs", "/dir")
	if err != nil || config.Annotations[AnnotationApplied] != "/d" || config.Annotations[AnnotationHash] != "h" {
		t.Errorf("%v, %v", config.GetAnnotations(), err)
	}
}

func TestAnErrorNamesTheFileThatIsWrong(t *testing.T) {
	deployment := "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n" +
		"  selector: {matchLabels: {a: b}}\n  template:\n    metadata: {labels: {a: b}}\n    spec: {containers: " +
		"[{name: c, image: i:1}]}\n"
	for what, c := range map[string]struct{ a, b, want string }{
		"an unknown field": {withSpec(one), "apiVersion: v1\nkind: Pod\nmetadata: {name: q}\nspek: {}\n",
			`b.yaml: document 1: unknown field "spek"`},
		"a name twice": {withSpec(one), withSpec(one), "b.yaml: pod default/p appears twice, also in a.yaml"},
		"a workload twice": {deployment, strings.Replace(deployment, "i:1", "i:2", 1),
			"b.yaml: Deployment default/d appears twice, also in a.yaml"},
		"a reference": {withSpec(one), strings.Replace(withSpec("containers:\n- name: c\n  image: i:1\n  envFrom: "+
			"[{configMapRef: {name: none}}]\n"), "name: p", "name: q", 1),
			"b.yaml: pod q: spec.containers[0].envFrom[0].configMapRef.name: there is no ConfigMap"},
		"nothing": {withSpec(one), "# nothing\n", "b.yaml: the file holds no document"},
	} {
		_, err := DecodeFiles([]File{{"a.yaml", strings.NewReader(c.a)}, {"b.yaml", strings.NewReader(c.b)}},
			Options{MayBeEmpty: true})
		var wrong *FileError
		if !errors.As(err, &wrong) || wrong.File != "b.yaml" || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", what, err, c.want)
		}
	}
}
