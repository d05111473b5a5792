package manifest

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// maxSize is the largest manifest that is read, in bytes. An API server takes 3 MiB.
const maxSize = 3 << 20

// Options say how a manifest is read.
type Options struct {
	// IgnoreUnsupported turns fields that are not supported into Pod.Warnings.
	IgnoreUnsupported bool
	// Name replaces metadata.name. The manifest holds one pod then.
	Name string
}

// Pod is one pod of a manifest, with defaults filled in and its fields checked.
type Pod struct {
	*corev1.Pod
	// Warnings are fields that are not supported and were asked to be ignored.
	Warnings []string
}

// FullName is namespace/name.
func (p *Pod) FullName() string { return p.Namespace + "/" + p.Name }

// Decode reads all documents of a manifest, YAML or JSON. Each is a Pod of v1. Unknown fields and doubled keys
// are errors.
func Decode(r io.Reader, options Options) ([]*Pod, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxSize {
		return nil, fmt.Errorf("the manifest is larger than %d MiB", maxSize>>20)
	}
	var pods []*Pod
	reader := kyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for number := 1; ; number++ {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if blank(document) {
			continue
		}
		pod, err := decodeOne(document, options)
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", number, err)
		}
		pods = append(pods, pod)
	}
	if len(pods) == 0 {
		return nil, errors.New("the manifest holds no pod")
	}
	if options.Name != "" && len(pods) > 1 {
		return nil, fmt.Errorf("--name is for a manifest of one pod; this one holds %d", len(pods))
	}
	seen := map[string]bool{}
	for _, pod := range pods {
		if seen[pod.FullName()] {
			return nil, fmt.Errorf("pod %s appears twice", pod.FullName())
		}
		seen[pod.FullName()] = true
	}
	return pods, nil
}

// blank says whether a document holds comments and white space only.
func blank(document []byte) bool {
	for line := range bytes.Lines(document) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("---")) {
			return false
		}
	}
	return true
}

func decodeOne(document []byte, options Options) (*Pod, error) {
	var kind struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return nil, err
	}
	switch {
	case kind.Kind == "":
		return nil, errors.New("kind: missing; Berth runs kind Pod, apiVersion v1")
	case kind.Kind != "Pod":
		return nil, fmt.Errorf("kind: %s is not supported: Berth runs kind Pod, apiVersion v1 "+
			"(of a Deployment or a Job, the pod template with apiVersion and kind before it)", kind.Kind)
	case kind.APIVersion != "v1":
		return nil, fmt.Errorf("apiVersion: %q is not v1", kind.APIVersion)
	}
	pod := &Pod{Pod: &corev1.Pod{}}
	data, err := yaml.YAMLToJSONStrict(document) // doubled keys are errors
	if err != nil {
		return nil, err
	}
	unknown, err := json.UnmarshalStrict(data, pod.Pod)
	if err := errors.Join(append(unknown, err)...); err != nil {
		return nil, err
	}
	if options.Name != "" {
		pod.Name = options.Name
	}
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
	if err := validate(pod.Pod); err != nil {
		return nil, fmt.Errorf("pod %s: %w", pod.Name, err)
	}
	return pod, nil
}

// dropVolumes removes the volumes whose source Berth does not support, and their mounts, and returns a warning
// for each mount. Every pod of a cluster has such a volume: the token of its service account. A volume
// without any source stays, as an error.
func dropVolumes(spec *corev1.PodSpec) (warnings []string) {
	dropped := map[string]bool{}
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v corev1.Volume) bool {
		supported := v.HostPath != nil || v.EmptyDir != nil || v.VolumeSource == (corev1.VolumeSource{})
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
	if _, err := rand.Read(b[:]); err != nil {
		return "", err
	}
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])), nil
}
