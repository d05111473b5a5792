package manifest

import (
	crand "crypto/rand"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Options say how a manifest is read.
type Options struct {
	// IgnoreUnsupported turns fields that are not supported into Pod.Warnings.
	IgnoreUnsupported bool
	// Name replaces metadata.name. The documents hold one pod then.
	Name string
	// RestartPolicy is that of pods that name none; empty: they run once.
	RestartPolicy corev1.RestartPolicy
	// MayBeEmpty: documents without a pod are no error. A file without a document is: somebody may be writing it.
	MayBeEmpty bool
}

// Pod is one pod of a manifest, with defaults filled in and its fields checked.
type Pod struct {
	*corev1.Pod
	// Warnings are fields that are not supported and were asked to be ignored.
	Warnings []string
	// Notes are parts of the manifest that need a cluster and are left out.
	Notes []string
	// Owner is the document that the pod comes from.
	Owner Owner
	// FirstID is the ID of the node that the root user of a pod with a user namespace has.
	FirstID uint32
	// User is the name of the containers' user where it has no number; empty: none. Only OfImage sets it.
	User string
	// Restarts limits how often containers of the pod are started again; nil: there is no limit.
	Restarts *RestartLimit

	// Generated says that the pod's name ends in letters and digits that another reading of the document would change.
	Generated bool
	// File is the file that the pod comes from.
	File string
	// Applied is what the pod's sandbox says of the directory that keeps the pod running; nil: there is none.
	Applied *Applied

	source  []byte   // what Hash is computed from, as JSON
	objects *objects // the ConfigMaps and Secrets of the documents
}

// Owner is the document that a pod comes from, as its annotation AnnotationOwner says: KIND/NAMESPACE/NAME. The name
// of a pod with generateName is that.
type Owner struct{ Kind, Namespace, Name string }

func (o Owner) String() string { return o.Kind + "/" + o.Namespace + "/" + o.Name }

// suffixLength is how many letters and digits follow generateName, as an API server has it.
const suffixLength = 5

// FullName is namespace/name.
func (p *Pod) FullName() string { return p.Namespace + "/" + p.Name }

// decodePod reads a document of kind Pod.
func decodePod(data []byte, options Options, known *objects) (*Pod, error) {
	pod := &Pod{Pod: &corev1.Pod{}, objects: known}
	if err := decodeStrict(data, pod.Pod); err != nil {
		return nil, err
	}
	if options.Name != "" {
		pod.Name = options.Name
	}
	pod.Owner = Owner{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name}
	if pod.Name == "" && pod.GenerateName != "" {
		pod.Owner.Name = pod.GenerateName
		pod.Name, pod.Generated = generate(pod.GenerateName), true
	}
	return finish(pod, options)
}

// finish checks a pod and fills in its defaults.
func finish(pod *Pod, options Options) (*Pod, error) {
	if pod.Spec.RestartPolicy == "" {
		pod.Spec.RestartPolicy = options.RestartPolicy
	}
	if err := pod.keepSource(); err != nil {
		return nil, err
	}
	pod.dropTokens()
	unsupported := unsupportedFields(pod.Pod)
	if len(unsupported) > 0 && !options.IgnoreUnsupported {
		return nil, &UnsupportedError{Pod: pod.Name, Fields: unsupported}
	}
	for _, field := range unsupported {
		pod.Warnings = append(pod.Warnings, field+" is not supported and ignored")
	}
	if options.IgnoreUnsupported {
		pod.Warnings = append(pod.Warnings, dropVolumes(&pod.Spec)...)
	}
	if err := setDefaults(pod.Pod); err != nil {
		return nil, err
	}
	pod.Owner.Namespace = pod.Namespace
	if err := validate(pod.Pod); err != nil {
		return nil, fmt.Errorf("pod %s: %w", pod.Name, err)
	}
	if err := setAppArmor(pod.Pod); err != nil {
		return nil, fmt.Errorf("pod %s: %w", pod.Name, err)
	}
	return pod, nil
}

// dropVolumes removes the volumes whose source Berth does not support, and their mounts, and returns a warning
// for each mount. A volume without any source stays, as an error.
func dropVolumes(spec *corev1.PodSpec) (warnings []string) {
	dropped := map[string]bool{}
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v corev1.Volume) bool {
		supported := supportedSource(v.VolumeSource) || v.VolumeSource == (corev1.VolumeSource{})
		dropped[v.Name] = dropped[v.Name] || !supported
		return !supported
	})
	for c := range containers(spec) {
		c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
			if dropped[m.Name] {
				warnings = append(warnings, fmt.Sprintf("container %s: nothing is mounted on %s", c.Name, m.MountPath))
			}
			return dropped[m.Name]
		})
	}
	return warnings
}

// UnsupportedError names the fields of a manifest that Berth does not support.
type UnsupportedError struct {
	Pod    string
	Fields []string
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf(
		"pod %s asks for what Berth does not support:\n  %s\nTake it out, or run the pod without it: --ignore-unsupported",
		e.Pod, strings.Join(e.Fields, "\n  "))
}

// setDefaults fills in what an API server would.
func setDefaults(pod *corev1.Pod) error {
	if pod.Namespace == "" {
		pod.Namespace = "default"
	}
	if pod.UID == "" {
		uid, err := newUID()
		if err != nil {
			return err
		}
		pod.UID = uid
	}
	if pod.Spec.TerminationGracePeriodSeconds == nil {
		seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
		pod.Spec.TerminationGracePeriodSeconds = &seconds
	}
	if pod.Spec.DNSPolicy == "" {
		pod.Spec.DNSPolicy = corev1.DNSClusterFirst
	}
	for i := range pod.Spec.Volumes {
		if image := pod.Spec.Volumes[i].Image; image != nil && image.PullPolicy == "" {
			image.PullPolicy = defaultPullPolicy(image.Reference)
		}
	}
	for c := range containers(&pod.Spec) {
		for i := range c.Ports {
			if c.Ports[i].Protocol == "" {
				c.Ports[i].Protocol = corev1.ProtocolTCP
			}
			if pod.Spec.HostNetwork && c.Ports[i].HostPort == 0 {
				c.Ports[i].HostPort = c.Ports[i].ContainerPort
			}
		}
		if c.ImagePullPolicy == "" {
			c.ImagePullPolicy = defaultPullPolicy(c.Image)
		}
		for i := range c.VolumeMounts { // a kubelet takes such paths to begin at the root directory
			c.VolumeMounts[i].MountPath = fromRoot(c.VolumeMounts[i].MountPath)
		}
		c.TerminationMessagePath = fromRoot(c.TerminationMessagePath)
		for name, limit := range c.Resources.Limits {
			if _, ok := c.Resources.Requests[name]; !ok {
				if c.Resources.Requests == nil {
					c.Resources.Requests = corev1.ResourceList{}
				}
				c.Resources.Requests[name] = limit.DeepCopy()
			}
		}
	}
	return nil
}

// fromRoot is a path in a container with the root directory before it. An empty one stays.
func fromRoot(name string) string {
	if name == "" || path.IsAbs(name) {
		return name
	}
	return "/" + name
}

// defaultPullPolicy is Always for the tag latest, said or not, else IfNotPresent.
func defaultPullPolicy(image string) corev1.PullPolicy {
	if strings.Contains(image, "@") {
		return corev1.PullIfNotPresent
	}
	name := image[strings.LastIndexByte(image, '/')+1:]
	if _, tag, ok := strings.Cut(name, ":"); ok && tag != "latest" {
		return corev1.PullIfNotPresent
	}
	return corev1.PullAlways
}

// containers yields the init containers, then the others.
func containers(spec *corev1.PodSpec) func(yield func(*corev1.Container) bool) {
	return func(yield func(*corev1.Container) bool) {
		for i := range spec.InitContainers {
			if !yield(&spec.InitContainers[i]) {
				return
			}
		}
		for i := range spec.Containers {
			if !yield(&spec.Containers[i]) {
				return
			}
		}
	}
}

// newUID is a random UUID (RFC 9562, version 4).
func newUID() (uid types.UID, err error) {
	var b [16]byte
	if _, err := crand.Read(b[:]); err != nil {
		return "", err
	}
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])), nil
}
