package manifest

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/device"
)

// Labels and annotations that a kubelet sets as well, so that other tools (crictl) know the pods and containers
// by name.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"

	AnnotationRestartCount = "io.kubernetes.container.restartCount"
	AnnotationPorts        = "io.kubernetes.container.ports"
	// AnnotationGracePeriod is how many seconds a container has to end once it is asked to.
	AnnotationGracePeriod = "io.kubernetes.pod.terminationGracePeriod"
)

// Annotations of Berth's own.
const (
	// AnnotationKind says on a container what it is in its pod: init, sidecar or nothing for an ordinary one.
	AnnotationKind = "berth.container/kind"
	// AnnotationPosition says on a container which one of its pod's manifest it is: a number from 0, first those of
	// initContainers, then those of containers.
	AnnotationPosition = "berth.container/position"
	// AnnotationDirectory says on a sandbox where the files of the pod are that its runtime does not know of.
	AnnotationDirectory = "berth.pod/directory"

	// AnnotationOwner says on a sandbox which document the pod comes from: KIND/NAMESPACE/NAME.
	AnnotationOwner = "berth.pod/owner"

	// AnnotationApplied says on a sandbox which directory of manifests keeps the pod running: its absolute path.
	AnnotationApplied = "berth.pod/applied-directory"
	// AnnotationFile says on such a sandbox which file of the directory the pod comes from.
	AnnotationFile = "berth.pod/applied-file"
	// AnnotationHash says on such a sandbox what Hash was when the pod was made.
	AnnotationHash = "berth.pod/manifest-hash"

	// AnnotationInput says on a container what an attach finds: InputStdin, InputTTY, both or neither.
	AnnotationInput = "berth.container/input"

	KindInit    = device.KindInit
	KindSidecar = device.KindSidecar
	InputStdin  = "stdin"
	InputTTY    = "tty"
)

// Host is what a pod may be told about the node that it runs on.
type Host struct {
	Name     string   // without domain
	IPs      []string // the first is status.hostIP
	MilliCPU int64    // what the node has, in thousandths of a CPU
	Memory   int64    // bytes
	// ResolvConf is the node's resolv.conf for pods with a network of their own, and NodeResolvConf for those in the
	// node's network. dnsConfig adds to it.
	ResolvConf, NodeResolvConf []byte
	SeccompDir                 string // where localhostProfile of a seccomp profile is looked up
}

// resolvConf is the one that a pod has without dnsConfig.
func (h *Host) resolvConf(p *Pod) []byte {
	if p.Spec.HostNetwork {
		return h.NodeResolvConf
	}
	return h.ResolvConf
}

// Sandbox is the request for a pod's sandbox. logDir is where the logs of its containers will be; directory becomes an
// annotation.
func (p *Pod) Sandbox(host *Host, logDir, directory string) (*cri.PodSandboxConfig, error) {
	dns, err := p.dns(host.resolvConf(p))
	if err != nil {
		return nil, err
	}
	config := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: p.Name, Namespace: p.Namespace, Uid: string(p.UID)},
		LogDirectory: logDir,
		DnsConfig:    dns,
		Labels:       p.labels(),
		Annotations:  map[string]string{},
		Linux:        &cri.LinuxPodSandboxConfig{SecurityContext: p.sandboxSecurity(host), Sysctls: map[string]string{}},
	}
	for key, value := range p.Annotations {
		config.Annotations[key] = value
	}
	if asks := p.devices(); len(asks) > 0 {
		if config.Annotations[device.Annotation], err = device.Annotate(asks); err != nil {
			return nil, err
		}
	}
	p.Applied.annotate(config.Annotations)
	config.Annotations[AnnotationDirectory] = directory
	config.Annotations[AnnotationOwner] = p.Owner.String()
	config.Annotations[AnnotationGracePeriod] = strconv.FormatInt(*p.Spec.TerminationGracePeriodSeconds, 10)
	if !p.Spec.HostNetwork {
		config.Hostname = p.hostname()
		config.PortMappings = p.ports()
	}
	for _, sysctl := range podSecurity(&p.Spec).Sysctls {
		config.Linux.Sysctls[sysctl.Name] = sysctl.Value
	}
	return config, nil
}

func (p *Pod) labels() map[string]string {
	labels := map[string]string{}
	for key, value := range p.Labels {
		labels[key] = value
	}
	labels[LabelPodName], labels[LabelPodNamespace], labels[LabelPodUID] = p.Name, p.Namespace, string(p.UID)
	return labels
}

// hostname is the one asked for, else the pod's name as far as the kernel takes it.
func (p *Pod) hostname() string {
	if p.Spec.Hostname != "" {
		return p.Spec.Hostname
	}
	const maxLength = 63
	name := p.Name
	if len(name) > maxLength {
		name = name[:maxLength]
	}
	for len(name) > 0 && (name[len(name)-1] == '-' || name[len(name)-1] == '.') {
		name = name[:len(name)-1]
	}
	return name
}

// ports are the ports of all containers, those without a port of the host too, as a kubelet passes them.
func (p *Pod) ports() []*cri.PortMapping {
	var mappings []*cri.PortMapping
	for c := range containers(&p.Spec) {
		for _, port := range c.Ports {
			mappings = append(mappings, &cri.PortMapping{
				Protocol:      cri.Protocol(cri.Protocol_value[string(port.Protocol)]),
				ContainerPort: port.ContainerPort,
				HostPort:      port.HostPort,
				HostIp:        port.HostIP,
			})
		}
	}
	return mappings
}

// sandboxSecurity is the security context of what the pod shares.
func (p *Pod) sandboxSecurity(host *Host) *cri.LinuxSandboxSecurityContext {
	pod := podSecurity(&p.Spec)
	context := &cri.LinuxSandboxSecurityContext{
		NamespaceOptions:         p.namespaces(),
		SelinuxOptions:           selinux(pod.SELinuxOptions),
		SupplementalGroups:       p.supplementalGroups(),
		SupplementalGroupsPolicy: groupsPolicy(pod.SupplementalGroupsPolicy),
		Seccomp:                  seccomp(pod.SeccompProfile, host.SeccompDir),
		Apparmor:                 appArmor(pod.AppArmorProfile),
	}
	if pod.RunAsUser != nil {
		context.RunAsUser = &cri.Int64Value{Value: *pod.RunAsUser}
	}
	if pod.RunAsGroup != nil && pod.RunAsUser != nil {
		context.RunAsGroup = &cri.Int64Value{Value: *pod.RunAsGroup}
	}
	for c := range containers(&p.Spec) {
		if isTrue(security(c).Privileged) {
			context.Privileged = true
			context.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
		}
	}
	return context
}

func (p *Pod) namespaces() *cri.NamespaceOption {
	options := &cri.NamespaceOption{Network: cri.NamespaceMode_POD, Pid: cri.NamespaceMode_CONTAINER,
		Ipc: cri.NamespaceMode_POD}
	if p.Spec.HostNetwork {
		options.Network = cri.NamespaceMode_NODE
	}
	if p.Spec.HostIPC {
		options.Ipc = cri.NamespaceMode_NODE
	}
	if p.UserNamespaced() {
		options.UsernsOptions = &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: p.IDMappings(), Gids: p.IDMappings()}
	}
	switch {
	case p.Spec.HostPID:
		options.Pid = cri.NamespaceMode_NODE
	case isTrue(p.Spec.ShareProcessNamespace):
		options.Pid = cri.NamespaceMode_POD
	}
	return options
}

// UserNamespaced says whether the pod asks for a user namespace of its own: hostUsers is false.
func (p *Pod) UserNamespaced() bool { return p.Spec.HostUsers != nil && !*p.Spec.HostUsers }

// IDRange is how many IDs a pod with a user namespace has, as for a kubelet.
const IDRange = 65536

// IDMappings maps the pod's IDs to those of the node that begin at FirstID; nil without a user namespace.
func (p *Pod) IDMappings() []*cri.IDMapping {
	if !p.UserNamespaced() {
		return nil
	}
	return []*cri.IDMapping{{ContainerId: 0, HostId: p.FirstID, Length: IDRange}}
}

// Handler is the runtime handler that the pod asks for: runtimeClassName, since there is no cluster to look it up in.
func (p *Pod) Handler() string {
	if p.Spec.RuntimeClassName == nil {
		return ""
	}
	return *p.Spec.RuntimeClassName
}

// Containers yields the pod's init containers in order, then the others.
func (p *Pod) Containers() func(yield func(*corev1.Container) bool) { return containers(&p.Spec) }

// Kind says what a container is in its pod: KindInit, KindSidecar, or nothing.
func (p *Pod) Kind(c *corev1.Container) string {
	for i := range p.Spec.InitContainers {
		if p.Spec.InitContainers[i].Name == c.Name {
			if c.RestartPolicy != nil {
				return KindSidecar
			}
			return KindInit
		}
	}
	return ""
}

// RestartPolicy says when a container is started again. A pod that says nothing runs once: unlike in a cluster, where
// that means Always.
func (p *Pod) RestartPolicy(c *corev1.Container) corev1.RestartPolicy {
	switch {
	case p.Kind(c) == KindSidecar:
		return corev1.RestartPolicyAlways
	case p.Spec.RestartPolicy == "":
		return corev1.RestartPolicyNever
	case p.Kind(c) == KindInit && p.Spec.RestartPolicy == corev1.RestartPolicyAlways:
		return corev1.RestartPolicyOnFailure
	}
	return p.Spec.RestartPolicy
}

// Supervised says whether the pod asks for anything that is done while it runs: restarts, probes, a preStop hook.
func (p *Pod) Supervised() bool {
	if p.Spec.RestartPolicy != "" && p.Spec.RestartPolicy != corev1.RestartPolicyNever ||
		p.Spec.ActiveDeadlineSeconds != nil {
		return true
	}
	for c := range containers(&p.Spec) {
		if c.LivenessProbe != nil || c.ReadinessProbe != nil || c.StartupProbe != nil || p.Kind(c) == KindSidecar ||
			c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
			return true
		}
	}
	return false
}
