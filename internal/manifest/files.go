package manifest

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// VolumeFile is a file of a volume whose content comes from the manifest.
type VolumeFile struct {
	Path string // inside the volume
	Data []byte
	Mode int32
}

// supportedSource says whether Berth supports the source of a volume.
func supportedSource(v corev1.VolumeSource) bool {
	return v.HostPath != nil || v.EmptyDir != nil || v.Image != nil || v.PersistentVolumeClaim != nil || HasFiles(v)
}

// HasFiles says whether the content of a volume comes from the manifest: of a configMap, secret, downwardAPI or
// projected volume.
func HasFiles(v corev1.VolumeSource) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
}

// InMemory says whether a kubelet keeps the files of a volume in memory only.
func InMemory(v corev1.VolumeSource) bool { return HasFiles(v) && v.ConfigMap == nil }

// VolumeFiles are the files of a volume for which HasFiles holds, in the order of their paths.
func (p *Pod) VolumeFiles(v *corev1.Volume, host *Host) ([]VolumeFile, error) {
	f := files{pod: p, host: host, byPath: map[string]VolumeFile{}}
	var err error
	switch {
	case v.ConfigMap != nil:
		f.mode = mode(v.ConfigMap.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode)
		f.object(kindConfigMap, v.ConfigMap.Name, v.ConfigMap.Items)
	case v.Secret != nil:
		f.mode = mode(v.Secret.DefaultMode, corev1.SecretVolumeSourceDefaultMode)
		f.object(kindSecret, v.Secret.SecretName, v.Secret.Items)
	case v.DownwardAPI != nil:
		f.mode = mode(v.DownwardAPI.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
		err = f.downward(v.DownwardAPI.Items)
	case v.Projected != nil:
		f.mode = mode(v.Projected.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)
		err = f.projected(v.Projected.Sources)
	}
	if err != nil {
		return nil, err
	}
	var all []VolumeFile
	for _, name := range slices.Sorted(maps.Keys(f.byPath)) {
		for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
			if _, file := f.byPath[parent]; file {
				return nil, fmt.Errorf("%s is a file and, for %s, a directory", parent, name)
			}
		}
		all = append(all, f.byPath[name])
	}
	return all, nil
}

func mode(own *int32, otherwise int32) int32 {
	if own != nil {
		return *own
	}
	return otherwise
}

// files collects the files of one volume.
type files struct {
	pod    *Pod
	host   *Host
	mode   int32
	byPath map[string]VolumeFile
}

// put adds a file. Where two sources of a projected volume have the same path, the later one counts, as for a kubelet.
func (f *files) put(name string, data []byte, own *int32) {
	name = path.Clean(name)
	f.byPath[name] = VolumeFile{Path: name, Data: data, Mode: mode(own, f.mode)}
}

// object adds the keys of a ConfigMap or Secret. What is missing was found optional when the manifest was read.
func (f *files) object(kind, name string, items []corev1.KeyToPath) {
	found := f.pod.objects.find(kind, f.pod.Namespace, name)
	if found == nil {
		return
	}
	if len(items) == 0 {
		for key, data := range found.data {
			f.put(key, data, nil)
		}
	}
	for _, item := range items {
		if data, ok := found.data[item.Key]; ok {
			f.put(item.Path, data, item.Mode)
		}
	}
}

func (f *files) downward(items []corev1.DownwardAPIVolumeFile) error {
	for _, item := range items {
		var value string
		var err error
		switch {
		case item.FieldRef != nil:
			value, err = f.pod.fileField(item.FieldRef.FieldPath)
		case item.ResourceFieldRef != nil:
			value, err = f.pod.resourceValue(item.ResourceFieldRef, &corev1.Container{}, f.host)
		default:
			err = errors.New("neither fieldRef nor resourceFieldRef")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", item.Path, err)
		}
		f.put(item.Path, []byte(value), item.Mode)
	}
	return nil
}

func (f *files) projected(sources []corev1.VolumeProjection) error {
	for _, source := range sources {
		switch {
		case source.ConfigMap != nil:
			f.object(kindConfigMap, source.ConfigMap.Name, source.ConfigMap.Items)
		case source.Secret != nil:
			f.object(kindSecret, source.Secret.Name, source.Secret.Items)
		case source.DownwardAPI != nil:
			if err := f.downward(source.DownwardAPI.Items); err != nil {
				return err
			}
		}
	}
	return nil
}

// knownFileField says whether a downwardAPI volume may have a field.
func knownFileField(field string) bool {
	switch field {
	case "metadata.labels", "metadata.annotations", "metadata.name", "metadata.namespace", "metadata.uid":
		return true
	}
	base, _, ok := subscript(field)
	return ok && (base == "metadata.labels" || base == "metadata.annotations")
}

// fileField is the content of a file of a downwardAPI volume.
func (p *Pod) fileField(field string) (string, error) {
	switch field {
	case "metadata.labels":
		return formatMap(p.Labels), nil
	case "metadata.annotations":
		return formatMap(p.Annotations), nil
	}
	return p.fieldValue(field, &Host{}, nil)
}

// formatMap writes labels or annotations as a kubelet does (pkg/fieldpath of Kubernetes).
func formatMap(m map[string]string) string {
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, fmt.Sprintf("%s=%q", key, m[key]))
	}
	return strings.Join(lines, "\n")
}

// tokenVolume is how the names begin of the volumes that an API server adds to a pod for its service account.
const tokenVolume = "kube-api-access-"

// dropTokens leaves out what is of service accounts: there is no API server that would sign a token. The volume that an
// API server has added to the pod goes with its mounts, as with automountServiceAccountToken: false.
func (p *Pod) dropTokens() {
	spec := &p.Spec
	asked := spec.ServiceAccountName != "" || spec.DeprecatedServiceAccount != "" ||
		isTrue(spec.AutomountServiceAccountToken)
	spec.ServiceAccountName, spec.DeprecatedServiceAccount, spec.AutomountServiceAccountToken = "", "", nil
	dropped := map[string]bool{}
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v corev1.Volume) bool {
		if v.Projected == nil {
			return false
		}
		hasToken := false
		v.Projected.Sources = slices.DeleteFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
			hasToken = hasToken || s.ServiceAccountToken != nil
			return s.ServiceAccountToken != nil
		})
		asked = asked || hasToken
		dropped[v.Name] = hasToken && strings.HasPrefix(v.Name, tokenVolume)
		return dropped[v.Name]
	})
	for c := range containers(spec) {
		c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return dropped[m.Name] })
	}
	if asked {
		p.Notes = append(p.Notes, "the service account and its token are left out: there is no API server for them")
	}
}
