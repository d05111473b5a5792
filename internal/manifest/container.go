package manifest

import (
	"encoding/json"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Placement is what the node adds to a container of a manifest.
type Placement struct {
	Host    *Host
	Env     *Variables // of Pod.Environment
	Image   *cri.Image // on the node
	LogPath string     // relative to the sandbox's log directory
	Mounts  []*cri.Mount
	Attempt int // how often the container was started before
}

// Container is the request for a container of the pod.
func (p *Pod) Container(c *corev1.Container, at *Placement) (*cri.ContainerConfig, error) {
	config := &cri.ContainerConfig{
		Metadata:    &cri.ContainerMetadata{Name: c.Name, Attempt: uint32(at.Attempt)},
		Image:       &cri.ImageSpec{Image: at.Image.GetId(), UserSpecifiedImage: c.Image},
		Command:     expandAll(c.Command, at.Env),
		Args:        expandAll(c.Args, at.Env),
		WorkingDir:  c.WorkingDir,
		Mounts:      at.Mounts,
		LogPath:     at.LogPath,
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		Labels:      p.labels(),
		Annotations: map[string]string{AnnotationRestartCount: strconv.Itoa(at.Attempt)},
		Linux: &cri.LinuxContainerConfig{
			Resources:       p.resources(c, at.Host),
			SecurityContext: p.containerSecurity(c, at.Host, at.Image),
		},
	}
	for _, name := range at.Env.Names {
		config.Envs = append(config.Envs, &cri.KeyValue{Key: name, Value: []byte(at.Env.Value(name))})
	}
	config.Labels[LabelContainerName] = c.Name
	config.Annotations[AnnotationGracePeriod] = strconv.FormatInt(*p.Spec.TerminationGracePeriodSeconds, 10)
	var input []string
	if c.Stdin {
		input = append(input, InputStdin)
	}
	if c.TTY {
		input = append(input, InputTTY)
	}
	config.Annotations[AnnotationInput] = strings.Join(input, ",")
	config.Annotations[AnnotationPosition] = strconv.Itoa(p.position(c))
	if kind := p.Kind(c); kind != "" {
		config.Annotations[AnnotationKind] = kind
	}
	if len(c.Ports) > 0 {
		ports, err := json.Marshal(c.Ports)
		if err != nil {
			return nil, err
		}
		config.Annotations[AnnotationPorts] = string(ports)
	}
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		config.StopSignal = cri.Signal(cri.Signal_value[string(*c.Lifecycle.StopSignal)])
	}
	return config, nil
}

// position is the number of a container among all of the pod.
func (p *Pod) position(c *corev1.Container) int {
	at := 0
	for other := range containers(&p.Spec) {
		if other.Name == c.Name {
			break
		}
		at++
	}
	return at
}

func expandAll(list []string, env *Variables) []string {
	var expanded []string
	for _, text := range list {
		expanded = append(expanded, env.Expand(text))
	}
	return expanded
}

// MessagePath is the path in a container to which it may write why it has ended.
func MessagePath(c *corev1.Container) string {
	if c.TerminationMessagePath != "" {
		return c.TerminationMessagePath
	}
	return corev1.TerminationMessagePathDefault
}
