package manifest

import (
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// supported are the fields that are done as a manifest asks, by path without indices. A path stands for all below it.
// What is not here is refused: a field that Kubernetes adds one day is refused by itself.
var supported = pathTree(
	"kind", "apiVersion",
	"metadata.name", "metadata.generateName",
	"metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations",
	"spec.volumes.name", "spec.volumes.hostPath", "spec.volumes.emptyDir", "spec.volumes.configMap", "spec.volumes.secret",
	"spec.volumes.image", "spec.volumes.persistentVolumeClaim", "spec.hostUsers",
	"spec.imagePullSecrets", "spec.restartPolicy", "spec.activeDeadlineSeconds", "spec.volumes.downwardAPI",
	"spec.volumes.projected.defaultMode",
	"spec.volumes.projected.sources.configMap",
	"spec.volumes.projected.sources.secret", "spec.volumes.projected.sources.downwardAPI",
	"spec.terminationGracePeriodSeconds", "spec.dnsPolicy", "spec.dnsConfig", "spec.nodeName",
	"spec.hostNetwork", "spec.hostPID", "spec.hostIPC", "spec.shareProcessNamespace",
	"spec.hostname", "spec.hostAliases", "spec.runtimeClassName", "spec.os",
	"spec.securityContext.seLinuxOptions", "spec.securityContext.runAsUser", "spec.securityContext.runAsGroup",
	"spec.securityContext.runAsNonRoot", "spec.securityContext.supplementalGroups",
	"spec.securityContext.supplementalGroupsPolicy", "spec.securityContext.fsGroup",
	"spec.securityContext.fsGroupChangePolicy", "spec.securityContext.sysctls", "spec.securityContext.seccompProfile",
	"spec.securityContext.appArmorProfile",
	container("spec.containers"), container("spec.initContainers"), "spec.initContainers.restartPolicy",
)

// container lists the fields of a container, joined by spaces.
func container(path string) string {
	fields := []string{
		"name", "image", "command", "args", "workingDir", "ports", "env.name", "env.value",
		"env.valueFrom.fieldRef", "env.valueFrom.resourceFieldRef", "env.valueFrom.configMapKeyRef",
		"env.valueFrom.secretKeyRef", "envFrom", "terminationMessagePath", "terminationMessagePolicy",
		"resources.limits", "resources.requests", "volumeMounts",
		"imagePullPolicy", "stdin", "stdinOnce", "tty", "lifecycle", "livenessProbe", "readinessProbe", "startupProbe",
		"securityContext.capabilities", "securityContext.privileged", "securityContext.seLinuxOptions",
		"securityContext.runAsUser", "securityContext.runAsGroup", "securityContext.runAsNonRoot",
		"securityContext.readOnlyRootFilesystem", "securityContext.allowPrivilegeEscalation", "securityContext.procMount",
		"securityContext.seccompProfile", "securityContext.appArmorProfile",
	}
	for i := range fields {
		fields[i] = path + "." + fields[i]
	}
	return strings.Join(fields, " ")
}

// harmless are values of unsupported fields that say what happens anyway.
var harmless = map[string]string{
	"spec.restartPolicy":     "Never",
	"spec.setHostnameAsFQDN": "false",
	"spec.hostUsers":         "true",
}

// neutral are fields that change nothing on a node that is the only one: what an API server and its controllers note
// about a pod, what decides to which node a pod goes and which pod has to make room, and what needs Services or cluster
// DNS. docs/cli.md has the list.
var neutral = map[string]bool{
	"status":                              true,
	"metadata.creationTimestamp":          true,
	"metadata.deletionTimestamp":          true,
	"metadata.deletionGracePeriodSeconds": true,
	"metadata.finalizers":                 true,
	"metadata.generation":                 true,
	"metadata.managedFields":              true,
	"metadata.ownerReferences":            true,
	"metadata.resourceVersion":            true,
	"metadata.selfLink":                   true,
	"spec.affinity":                       true,
	"spec.enableServiceLinks":             true,
	"spec.nodeSelector":                   true,
	"spec.preemptionPolicy":               true,
	"spec.priority":                       true,
	"spec.priorityClassName":              true,
	"spec.schedulerName":                  true,
	"spec.subdomain":                      true,
	"spec.tolerations":                    true,
	"spec.topologySpreadConstraints":      true,
	"spec.containers.resizePolicy":        true,
	"spec.initContainers.resizePolicy":    true,
}

// tree maps a field to what is supported below it; an empty tree is all of it.
type tree map[string]tree

func pathTree(lists ...string) tree {
	root := tree{}
	for _, list := range lists {
		for _, path := range strings.Fields(list) {
			node := root
			for _, name := range strings.Split(path, ".") {
				if node[name] == nil {
					node[name] = tree{}
				}
				node = node[name]
			}
		}
	}
	return root
}

// unsupportedFields lists the fields that are set and not supported, with their indices, in order of the types' fields.
func unsupportedFields(pod *corev1.Pod) []string {
	var found []string
	walk(reflect.ValueOf(pod).Elem(), supported, "", "", &found)
	for c := range containers(&pod.Spec) {
		for _, list := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
			for name := range list {
				if !supportedResource(name) {
					found = append(found, fmt.Sprintf("container %s: resources: %s", c.Name, name))
				}
			}
		}
	}
	for i, volume := range pod.Spec.Volumes {
		if e := volume.EmptyDir; e != nil && e.SizeLimit != nil && e.Medium != corev1.StorageMediumMemory {
			found = append(found, fmt.Sprintf("spec.volumes[%d].emptyDir.sizeLimit without medium: Memory", i))
		}
	}
	return found
}

// walk compares a struct with what is supported. plain is the path without indices, shown the one with them.
func walk(v reflect.Value, allowed tree, plain, shown string, found *[]string) {
	for i := range v.NumField() {
		field, value := v.Type().Field(i), v.Field(i)
		if value.IsZero() || value.Kind() == reflect.Slice && value.Len() == 0 {
			continue
		}
		name, rest, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" && (field.Anonymous || strings.Contains(rest, "inline")) {
			walk(value, allowed, plain, shown, found)
			continue
		}
		below, ok := allowed[name]
		path, show := join(plain, name), join(shown, name)
		switch {
		case neutral[path]:
		case !ok:
			if want, is := harmless[path]; !is || fmt.Sprint(reflect.Indirect(value).Interface()) != want {
				*found = append(*found, show)
			}
		case len(below) > 0:
			descend(value, below, path, show, found)
		}
	}
}

func descend(v reflect.Value, allowed tree, plain, shown string, found *[]string) {
	switch v.Kind() {
	case reflect.Pointer:
		descend(v.Elem(), allowed, plain, shown, found)
	case reflect.Slice:
		for i := range v.Len() {
			descend(v.Index(i), allowed, plain, fmt.Sprintf("%s[%d]", shown, i), found)
		}
	case reflect.Struct:
		walk(v, allowed, plain, shown, found)
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func supportedResource(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory ||
		strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) || extended(name)
}
