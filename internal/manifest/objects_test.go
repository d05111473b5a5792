package manifest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// objectDocuments are a ConfigMap and a Secret to which pods of the tests refer.
const objectDocuments = `---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
immutable: true
data: {color: blue, bad.name: x}
binaryData: {blob: /w==}
---
apiVersion: v1
kind: Secret
metadata: {name: login}
type: Opaque
data: {user: Ym9i}
stringData: {password: hush}
---
`

// decodeWith reads a pod together with objectDocuments.
func decodeWith(t *testing.T, spec string, options Options) (*Pod, error) {
	t.Helper()
	pods, err := decodePods(strings.NewReader(withSpec(spec)+"\n"+objectDocuments), options)
	if err != nil {
		return nil, err
	}
	return pods[0], nil
}

func TestVariablesComeFromConfigMapsAndSecrets(t *testing.T) {
	p, err := decodeWith(t, one+`  envFrom:
  - {configMapRef: {name: settings}, prefix: S_}
  - {secretRef: {name: login}}
  - {secretRef: {name: none, optional: true}}
  env:
  - {name: user, value: "not $(user)"}
  - {name: HUE, valueFrom: {configMapKeyRef: {name: settings, key: color}}}
  - {name: WORD, valueFrom: {secretKeyRef: {name: login, key: password}}}
  - {name: NOT, valueFrom: {secretKeyRef: {name: login, key: none, optional: true}}}
`, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, env := range translate(t, p).Envs {
		got = append(got, env.Key+"="+string(env.Value))
	}
	want := []string{"S_bad.name=x", "S_color=blue", "password=hush", "user=not bob", "HUE=blue", "WORD=hush"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestVolumesHoldWhatTheirSourcesSay(t *testing.T) {
	p, err := decodeWith(t, one+`  resources: {limits: {memory: 64Mi}}
volumes:
- {name: all, configMap: {name: settings, defaultMode: 288}}
- {name: some, secret: {secretName: login, items: [{key: user, path: a/b, mode: 256}]}}
- {name: none, configMap: {name: none, optional: true}}
- name: facts
  downwardAPI:
    items:
    - {path: labels, fieldRef: {fieldPath: metadata.labels}}
    - {path: memory, resourceFieldRef: {containerName: c, resource: limits.memory, divisor: 1Mi}}
- name: mixed
  projected:
    sources:
    - {configMap: {name: settings, items: [{key: color, path: x}]}}
    - {secret: {name: login, items: [{key: user, path: x}]}}
    - {downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}
    - {serviceAccountToken: {path: token}}
`, Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"bad.name:x:440 blob:\xff:440 color:blue:440", "a/b:bob:400", "", `labels:app="shop":644 memory:64:644`,
		"name:p:644 x:bob:644",
	}
	for i := range p.Spec.Volumes {
		files, err := p.VolumeFiles(&p.Spec.Volumes[i], testHost)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, file := range files {
			got = append(got, fmt.Sprintf("%s:%s:%o", file.Path, file.Data, file.Mode))
		}
		if text := strings.Join(got, " "); text != want[i] {
			t.Errorf("volume %s: got %q, want %q", p.Spec.Volumes[i].Name, text, want[i])
		}
	}
	if len(p.Notes) != 1 {
		t.Errorf("notes: %q", p.Notes)
	}
}

func TestAReferenceToNothingIsRefusedByItsPath(t *testing.T) {
	for _, c := range []struct{ spec, says string }{
		{one + "  envFrom: [{configMapRef: {name: m}}]\n",
			`spec.containers[0].envFrom[0].configMapRef.name: there is no ConfigMap "m" in namespace default`},
		{one + "  env: [{name: A, valueFrom: {secretKeyRef: {name: login, key: k}}}]\n",
			`spec.containers[0].env[0].valueFrom.secretKeyRef.key: Secret login has no key "k"`},
		{one + "volumes: [{name: v, configMap: {name: settings, items: [{key: k, path: p}]}}]\n",
			`spec.volumes[0].configMap.items[0].key: ConfigMap settings has no key "k"`},
		{one + "volumes: [{name: v, projected: {sources: [{secret: {name: s}}]}}]\n",
			`spec.volumes[0].projected.sources[0].secret.name: there is no Secret "s"`},
	} {
		if _, err := decodeWith(t, c.spec, Options{}); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("want an error with %q, got %v", c.says, err)
		}
		p, err := decodeWith(t, c.spec, Options{IgnoreUnsupported: true})
		if err != nil || len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0], c.says) {
			t.Errorf("ignored: got %v, %v", p, err)
		}
	}
	file := "items: [{path: x, fieldRef: {fieldPath: status.podIP}}]"
	for spec, says := range map[string]string{
		"volumes: [{name: v, configMap: {name: settings, items: [{key: color, path: ../x}]}}]\n": "items[0].path",
		"volumes: [{name: v, configMap: {name: settings, items: [{key: color, path: ..x}]}}]\n":  "items[0].path",
		"volumes: [{name: v, secret: {secretName: login, defaultMode: 512}}]\n":                  "secret.defaultMode",
		"volumes: [{name: v, downwardAPI: {" + file + "}}]\n":                                    "fieldRef.fieldPath",
		"volumes: [{name: v, emptyDir: {}, configMap: {name: settings}}]\n":                      "more than one source",
	} {
		if _, err := decodeWith(t, one+spec, Options{}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("want an error with %q, got %v", says, err)
		}
	}
}

// What `kubectl get pod -o yaml` prints has everything that a cluster has added to the pod.
func TestAPodOfAClusterIsTakenAsItIs(t *testing.T) {
	p, err := decodeWith(t, one+`  terminationMessagePath: /dev/termination-log
  terminationMessagePolicy: File
  volumeMounts:
  - {name: kube-api-access-abcde, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
enableServiceLinks: true
nodeName: worker1
nodeSelector: {a: b}
affinity: {nodeAffinity: {}}
preemptionPolicy: PreemptLowerPriority
priority: 0
priorityClassName: high
schedulerName: default-scheduler
serviceAccount: default
serviceAccountName: default
tolerations: [{effect: NoExecute, key: node.kubernetes.io/not-ready, operator: Exists, tolerationSeconds: 300}]
topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]
volumes:
- name: kube-api-access-abcde
  projected:
    defaultMode: 420
    sources:
    - {serviceAccountToken: {expirationSeconds: 3607, path: token}}
    - {configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}}
    - {downwardAPI: {items: [{fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}, path: namespace}]}}
`, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Notes) != 1 || len(p.Warnings) != 0 || len(p.Spec.Volumes) != 0 ||
		len(p.Spec.Containers[0].VolumeMounts) != 0 {
		t.Errorf("got %q, %q, %v", p.Notes, p.Warnings, p.Spec)
	}
	text := strings.Replace(withSpec(one), "metadata:\n", "metadata:\n  resourceVersion: '7'\n  generation: 1\n"+
		"  creationTimestamp: '2026-01-31T12:00:00Z'\n  managedFields: [{manager: kubectl}]\n"+
		"  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: r, uid: u}]\n", 1) +
		"status: {phase: Running, podIP: 10.0.0.1}\n"
	if _, err := decodePods(strings.NewReader(text), Options{}); err != nil {
		t.Error(err)
	}
}

func TestListsNamespacesAndGeneratedNames(t *testing.T) {
	item := "- apiVersion: v1\n  kind: Pod\n  metadata: {generateName: web-, namespace: shop}\n" +
		"  spec: {containers: [{name: c, image: i}]}\n"
	list := "apiVersion: v1\nkind: List\nmetadata: {resourceVersion: ''}\nitems:\n" + item + item
	space := "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n"
	pods, err := decodePods(strings.NewReader(list+space), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(pods) != 2 || pods[0].Name == pods[1].Name {
		t.Fatalf("got %v", pods)
	}
	for _, p := range pods {
		if !regexp.MustCompile(`^web-[a-z0-9]{5}$`).MatchString(p.Name) || p.Owner.String() != "Pod/shop/web-" {
			t.Errorf("got %s of %s", p.Name, p.Owner)
		}
	}
	for text, says := range map[string]string{
		strings.Replace(list, "image: i", "wrong: i", 1):             "items[0]: ",
		list + strings.Replace(space, "name: shop", "name: away", 1): "namespace away: no pod",
		withSpec(one) + "\n" + objectDocuments + objectDocuments:     "default/settings appears twice",
	} {
		if _, err := decodePods(strings.NewReader(text), Options{}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("want an error with %q, got %v", says, err)
		}
	}
}

func TestPullSecretsAreThoseOfThePod(t *testing.T) {
	secrets := "---\napiVersion: v1\nkind: Secret\nmetadata: {name: new}\n" +
		"stringData: {.dockerconfigjson: '{\"auths\":{}}'}\n" +
		"---\napiVersion: v1\nkind: Secret\nmetadata: {name: old}\nstringData: {.dockercfg: '{\"r\":{}}'}\n"
	pods, err := decodePods(strings.NewReader(withSpec(one+"imagePullSecrets: [{name: new}, {name: old}, {name: none}]\n")+
		secrets), Options{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, data := range pods[0].PullSecrets() {
		got = append(got, string(data))
	}
	if !slices.Equal(got, []string{`{"auths":{}}`, `{"auths":{"r":{}}}`}) {
		t.Errorf("got %q", got)
	}
	if len(pods[0].Notes) != 1 || !strings.HasPrefix(pods[0].Notes[0], "spec.imagePullSecrets[2]: ") {
		t.Errorf("notes: %q", pods[0].Notes)
	}
}
