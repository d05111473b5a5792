package manifest

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"path"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// validUID matches a UID that may be part of a directory's name.
var validUID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,127}$`)

// checks collects what is wrong with a pod.
type checks struct{ errs []error }

func (c *checks) add(field, format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf(field+": "+format, args...))
}

// syntax adds what a function of apimachinery's validation package says of a value.
func (c *checks) syntax(field, value string, problems []string) {
	if len(problems) > 0 {
		c.add(field, "%q: %s", value, strings.Join(problems, "; "))
	}
}

// validate checks what an API server would have, as far as it matters here.
func validate(pod *corev1.Pod) error {
	var c checks
	if pod.Name == "" {
		c.add("metadata.name", "missing (a name can be given with --name)")
	} else {
		c.syntax("metadata.name", pod.Name, validation.IsDNS1123Subdomain(pod.Name))
	}
	c.syntax("metadata.namespace", pod.Namespace, validation.IsDNS1123Label(pod.Namespace))
	if !validUID.MatchString(string(pod.UID)) {
		c.add("metadata.uid", "%q is not made of letters, digits and -", pod.UID)
	}
	spec := &pod.Spec
	if *spec.TerminationGracePeriodSeconds < 0 {
		c.add("spec.terminationGracePeriodSeconds", "%d is negative", *spec.TerminationGracePeriodSeconds)
	}
	if spec.Hostname != "" {
		c.syntax("spec.hostname", spec.Hostname, validation.IsDNS1123Label(spec.Hostname))
	}
	if spec.HostPID && spec.ShareProcessNamespace != nil && *spec.ShareProcessNamespace {
		c.add("spec.shareProcessNamespace", "cannot be true together with hostPID")
	}
	if spec.HostUsers != nil && !*spec.HostUsers && (spec.HostNetwork || spec.HostPID || spec.HostIPC) {
		c.add("spec.hostUsers", "cannot be false together with hostNetwork, hostPID or hostIPC")
	}
	if spec.OS != nil && spec.OS.Name != corev1.Linux {
		c.add("spec.os.name", "%q is not linux", spec.OS.Name)
	}
	c.dns(spec)
	c.hostAliases(spec)
	volumes := c.volumes(spec)
	c.claimMounts(spec)
	if len(spec.Containers) == 0 {
		c.add("spec.containers", "missing")
	}
	names, hostPorts := map[string]bool{}, map[string]string{}
	list := func(field string, all []corev1.Container) {
		for i := range all {
			c.container(fmt.Sprintf("%s[%d]", field, i), &all[i], spec, names, volumes, hostPorts)
		}
	}
	list("spec.initContainers", spec.InitContainers)
	list("spec.containers", spec.Containers)
	for i := range spec.InitContainers {
		ctr := &spec.InitContainers[i]
		c.supervision(fmt.Sprintf("spec.initContainers[%d]", i), ctr, ctr.RestartPolicy == nil)
	}
	for i := range spec.Containers {
		c.supervision(fmt.Sprintf("spec.containers[%d]", i), &spec.Containers[i], false)
	}
	switch spec.RestartPolicy {
	case "", corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever:
	default:
		c.add("spec.restartPolicy", "%q is none of Always, OnFailure and Never", spec.RestartPolicy)
	}
	if s := spec.ActiveDeadlineSeconds; s != nil && (*s < 1 || *s > math.MaxInt32) {
		c.add("spec.activeDeadlineSeconds", "%d is not in 1-%d", *s, math.MaxInt32)
	}
	c.podSecurity("spec.securityContext", podSecurity(spec))
	c.profiles("spec.securityContext", podSecurity(spec).SeccompProfile, podSecurity(spec).AppArmorProfile)
	return errors.Join(c.errs...)
}

func (c *checks) dns(spec *corev1.PodSpec) {
	switch spec.DNSPolicy {
	case corev1.DNSClusterFirst, corev1.DNSClusterFirstWithHostNet, corev1.DNSDefault:
	case corev1.DNSNone:
		if spec.DNSConfig == nil || len(spec.DNSConfig.Nameservers) == 0 {
			c.add("spec.dnsConfig.nameservers", "missing: dnsPolicy is None")
		}
	default:
		c.add("spec.dnsPolicy", "%q is none of ClusterFirst, ClusterFirstWithHostNet, Default and None", spec.DNSPolicy)
	}
	if spec.DNSConfig == nil {
		return
	}
	if n := len(spec.DNSConfig.Nameservers); n > maxNameservers {
		c.add("spec.dnsConfig.nameservers", "%d are more than %d", n, maxNameservers)
	}
	for i, server := range spec.DNSConfig.Nameservers {
		if _, err := netip.ParseAddr(server); err != nil {
			c.add(fmt.Sprintf("spec.dnsConfig.nameservers[%d]", i), "%q is not an IP address", server)
		}
	}
	if n := len(spec.DNSConfig.Searches); n > maxSearches {
		c.add("spec.dnsConfig.searches", "%d are more than %d", n, maxSearches)
	}
	for i, search := range spec.DNSConfig.Searches {
		if strings.ContainsAny(search, " \t\n\r") || search == "" {
			c.add(fmt.Sprintf("spec.dnsConfig.searches[%d]", i), "%q is no domain", search)
		}
	}
	for i, option := range spec.DNSConfig.Options {
		field := fmt.Sprintf("spec.dnsConfig.options[%d]", i)
		if option.Name == "" || strings.ContainsAny(option.Name, " \t\n\r") ||
			option.Value != nil && strings.ContainsAny(*option.Value, " \t\n\r") {
			c.add(field, "name and value are one word each")
		}
	}
}

func (c *checks) hostAliases(spec *corev1.PodSpec) {
	for i, alias := range spec.HostAliases {
		field := fmt.Sprintf("spec.hostAliases[%d]", i)
		if _, err := netip.ParseAddr(alias.IP); err != nil {
			c.add(field+".ip", "%q is not an IP address", alias.IP)
		}
		for j, name := range alias.Hostnames {
			c.syntax(fmt.Sprintf("%s.hostnames[%d]", field, j), name, validation.IsDNS1123Subdomain(name))
		}
	}
}

// volumes checks the volumes and returns their names.
func (c *checks) volumes(spec *corev1.PodSpec) map[string]bool {
	names := map[string]bool{}
	for i, volume := range spec.Volumes {
		field := fmt.Sprintf("spec.volumes[%d]", i)
		c.syntax(field+".name", volume.Name, validation.IsDNS1123Label(volume.Name))
		if names[volume.Name] {
			c.add(field+".name", "%q appears twice", volume.Name)
		}
		names[volume.Name] = true
		c.volumeSource(field, &volume)
	}
	return names
}

// volumeSource checks the source of a volume, of which there is one.
func (c *checks) volumeSource(field string, volume *corev1.Volume) {
	sources := howMany(volume.HostPath != nil, volume.EmptyDir != nil, volume.ConfigMap != nil, volume.Secret != nil,
		volume.DownwardAPI != nil, volume.Projected != nil, volume.Image != nil, volume.PersistentVolumeClaim != nil)
	switch {
	case sources > 1:
		c.add(field, "has more than one source")
	case volume.HostPath != nil:
		c.hostPath(field+".hostPath", volume.HostPath)
	case volume.EmptyDir != nil:
		if m := volume.EmptyDir.Medium; m != corev1.StorageMediumDefault && m != corev1.StorageMediumMemory {
			c.add(field+".emptyDir.medium", "%q is not supported: Memory, or nothing", m)
		}
		if s := volume.EmptyDir.SizeLimit; s != nil && s.Sign() < 0 {
			c.add(field+".emptyDir.sizeLimit", "%s is negative", s)
		}
	case volume.ConfigMap != nil:
		c.fileMode(field+".configMap.defaultMode", volume.ConfigMap.DefaultMode)
		c.items(field+".configMap", volume.ConfigMap.Items)
	case volume.Secret != nil:
		c.fileMode(field+".secret.defaultMode", volume.Secret.DefaultMode)
		c.items(field+".secret", volume.Secret.Items)
	case volume.DownwardAPI != nil:
		c.fileMode(field+".downwardAPI.defaultMode", volume.DownwardAPI.DefaultMode)
		c.downward(field+".downwardAPI", volume.DownwardAPI.Items)
	case volume.Projected != nil:
		c.projected(field+".projected", volume.Projected)
	case volume.Image != nil:
		c.image(field+".image.reference", volume.Image.Reference)
		c.pullPolicy(field+".image.pullPolicy", volume.Image.PullPolicy)
	case volume.PersistentVolumeClaim != nil:
		c.claimName(field+".persistentVolumeClaim.claimName", volume.PersistentVolumeClaim.ClaimName)
	default:
		c.add(field, "has no source that Berth supports")
	}
}

func (c *checks) fileMode(field string, mode *int32) {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		c.add(field, "%d is not in 0-0777 (octal)", *mode)
	}
}

// filePath checks the path of a file in a volume. Names that begin with .. are of the directory that has the files.
func (c *checks) filePath(field, name string, seen map[string]bool) {
	clean := path.Clean(name)
	if name == "" || clean == "." || !LocalPath(name) || strings.HasPrefix(clean, "..") {
		c.add(field, "%q is not the path of a file inside the volume", name)
	}
	if seen[clean] {
		c.add(field, "%q appears twice", name)
	}
	seen[clean] = true
}

func (c *checks) items(field string, items []corev1.KeyToPath) {
	seen := map[string]bool{}
	for i, item := range items {
		field := fmt.Sprintf("%s.items[%d]", field, i)
		c.filePath(field+".path", item.Path, seen)
		c.fileMode(field+".mode", item.Mode)
	}
}

func (c *checks) downward(field string, items []corev1.DownwardAPIVolumeFile) {
	seen := map[string]bool{}
	for i, item := range items {
		field := fmt.Sprintf("%s.items[%d]", field, i)
		c.filePath(field+".path", item.Path, seen)
		c.fileMode(field+".mode", item.Mode)
		ref, resource := item.FieldRef, item.ResourceFieldRef
		switch {
		case (ref == nil) == (resource == nil):
			c.add(field, "has one of fieldRef and resourceFieldRef")
		case ref != nil && !knownFileField(ref.FieldPath):
			c.add(field+".fieldRef.fieldPath", "%q is not supported in a volume", ref.FieldPath)
		case resource != nil && !knownResource(resource.Resource):
			c.add(field+".resourceFieldRef.resource", "%q is not supported", resource.Resource)
		case resource != nil && resource.ContainerName == "":
			c.add(field+".resourceFieldRef.containerName", "missing")
		}
	}
}

func (c *checks) projected(field string, source *corev1.ProjectedVolumeSource) {
	c.fileMode(field+".defaultMode", source.DefaultMode)
	for i, s := range source.Sources {
		field := fmt.Sprintf("%s.sources[%d]", field, i)
		if n := howMany(s.ConfigMap != nil, s.Secret != nil, s.DownwardAPI != nil, s.ClusterTrustBundle != nil,
			s.PodCertificate != nil); n != 1 {
			c.add(field, "has %d sources: it has one of configMap, secret and downwardAPI", n)
		}
		if s.ConfigMap != nil {
			c.items(field+".configMap", s.ConfigMap.Items)
		}
		if s.Secret != nil {
			c.items(field+".secret", s.Secret.Items)
		}
		if s.DownwardAPI != nil {
			c.downward(field+".downwardAPI", s.DownwardAPI.Items)
		}
	}
}

func (c *checks) hostPath(field string, source *corev1.HostPathVolumeSource) {
	if !path.IsAbs(source.Path) {
		c.add(field+".path", "%q is not absolute", source.Path)
	}
	for _, part := range strings.Split(source.Path, "/") {
		if part == ".." {
			c.add(field+".path", "%q holds ..", source.Path)
			break
		}
	}
	if source.Type == nil {
		return
	}
	switch *source.Type {
	case corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate, corev1.HostPathDirectory, corev1.HostPathFileOrCreate,
		corev1.HostPathFile, corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev:
	default:
		c.add(field+".type", "%q is no type of hostPath", *source.Type)
	}
}

func (c *checks) container(field string, ctr *corev1.Container, spec *corev1.PodSpec, names, volumes map[string]bool,
	hostPorts map[string]string) {
	c.syntax(field+".name", ctr.Name, validation.IsDNS1123Label(ctr.Name))
	if names[ctr.Name] {
		c.add(field+".name", "%q appears twice", ctr.Name)
	}
	names[ctr.Name] = true
	c.image(field+".image", ctr.Image)
	c.pullPolicy(field+".imagePullPolicy", ctr.ImagePullPolicy)
	if ctr.RestartPolicy != nil && *ctr.RestartPolicy != corev1.ContainerRestartPolicyAlways {
		c.add(field+".restartPolicy", "%q: an init container is a sidecar with Always, or has none", *ctr.RestartPolicy)
	}
	if ctr.StdinOnce && !ctr.Stdin {
		c.add(field+".stdinOnce", "needs stdin")
	}
	if ctr.Lifecycle != nil && ctr.Lifecycle.StopSignal != nil {
		if _, ok := cri.Signal_value[string(*ctr.Lifecycle.StopSignal)]; !ok {
			c.add(field+".lifecycle.stopSignal", "%q is no signal", *ctr.Lifecycle.StopSignal)
		}
	}
	if p := ctr.TerminationMessagePolicy; p != "" && p != corev1.TerminationMessageReadFile &&
		p != corev1.TerminationMessageFallbackToLogsOnError {
		c.add(field+".terminationMessagePolicy", "%q is neither File nor FallbackToLogsOnError", p)
	}
	for i, from := range ctr.EnvFrom {
		if (from.ConfigMapRef == nil) == (from.SecretRef == nil) {
			c.add(fmt.Sprintf("%s.envFrom[%d]", field, i), "has one of configMapRef and secretRef")
		}
	}
	for i, env := range ctr.Env {
		c.env(fmt.Sprintf("%s.env[%d]", field, i), env)
	}
	c.ports(field, ctr, spec, hostPorts)
	c.mounts(field, ctr, volumes)
	c.resources(field+".resources", &ctr.Resources)
	security := security(ctr)
	if p := security.ProcMount; p != nil && *p == corev1.UnmaskedProcMount && (spec.HostUsers == nil || *spec.HostUsers) {
		c.add(field+".securityContext.procMount", "hostUsers must be false to use Unmasked") // as the API server says it
	}
	c.id(field+".securityContext.runAsUser", security.RunAsUser)
	c.id(field+".securityContext.runAsGroup", security.RunAsGroup)
	c.profiles(field+".securityContext", security.SeccompProfile, security.AppArmorProfile)
	if p := security.ProcMount; p != nil && *p != corev1.DefaultProcMount && *p != corev1.UnmaskedProcMount {
		c.add(field+".securityContext.procMount", "%q is neither Default nor Unmasked", *p)
	}
	if e := security.AllowPrivilegeEscalation; e != nil && !*e && isTrue(security.Privileged) {
		c.add(field+".securityContext.allowPrivilegeEscalation", "cannot be false in a privileged container")
	}
}

func (c *checks) image(field, name string) {
	if name == "" || strings.TrimSpace(name) != name {
		c.add(field, "%q is no image", name)
	}
}

func (c *checks) pullPolicy(field string, policy corev1.PullPolicy) {
	switch policy {
	case corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		c.add(field, "%q is none of Always, IfNotPresent and Never", policy)
	}
}

func (c *checks) env(field string, env corev1.EnvVar) {
	c.syntax(field+".name", env.Name, validation.IsRelaxedEnvVarName(env.Name))
	if env.ValueFrom == nil {
		return
	}
	if env.Value != "" {
		c.add(field, "has both value and valueFrom")
	}
	from := env.ValueFrom
	if n := howMany(from.FieldRef != nil, from.ResourceFieldRef != nil, from.ConfigMapKeyRef != nil,
		from.SecretKeyRef != nil, from.FileKeyRef != nil); n != 1 {
		c.add(field+".valueFrom",
			"has %d sources: it has one of fieldRef, resourceFieldRef, configMapKeyRef and secretKeyRef", n)
	}
	if ref := env.ValueFrom.FieldRef; ref != nil && !knownField(ref.FieldPath) {
		c.add(field+".valueFrom.fieldRef.fieldPath", "%q is not supported", ref.FieldPath)
	}
	if ref := env.ValueFrom.ResourceFieldRef; ref != nil && !knownResource(ref.Resource) {
		c.add(field+".valueFrom.resourceFieldRef.resource", "%q is not supported", ref.Resource)
	}
}

// howMany is how many of some things are there.
func howMany(there ...bool) (n int) {
	for _, is := range there {
		if is {
			n++
		}
	}
	return n
}

func (c *checks) ports(field string, ctr *corev1.Container, spec *corev1.PodSpec, hostPorts map[string]string) {
	names := map[string]bool{}
	for i, port := range ctr.Ports {
		field := fmt.Sprintf("%s.ports[%d]", field, i)
		if port.Name != "" {
			c.syntax(field+".name", port.Name, validation.IsValidPortName(port.Name))
			if names[port.Name] {
				c.add(field+".name", "%q appears twice", port.Name)
			}
			names[port.Name] = true
		}
		if port.ContainerPort < 1 || port.ContainerPort > 65535 {
			c.add(field+".containerPort", "%d is not in 1-65535", port.ContainerPort)
		}
		if port.HostPort < 0 || port.HostPort > 65535 {
			c.add(field+".hostPort", "%d is not in 1-65535", port.HostPort)
		}
		switch port.Protocol {
		case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		default:
			c.add(field+".protocol", "%q is none of TCP, UDP and SCTP", port.Protocol)
		}
		if port.HostIP != "" {
			if _, err := netip.ParseAddr(port.HostIP); err != nil {
				c.add(field+".hostIP", "%q is not an IP address", port.HostIP)
			}
		}
		if spec.HostNetwork && port.HostPort != port.ContainerPort {
			c.add(field+".hostPort", "%d differs from containerPort %d in a pod on the host's network", port.HostPort,
				port.ContainerPort)
		}
		if port.HostPort == 0 || spec.HostNetwork {
			continue
		}
		key := fmt.Sprintf("%s %s %d", port.Protocol, port.HostIP, port.HostPort)
		if other, taken := hostPorts[key]; taken {
			c.add(field+".hostPort", "%d is taken by container %s", port.HostPort, other)
		}
		hostPorts[key] = ctr.Name
	}
}

func (c *checks) mounts(field string, ctr *corev1.Container, volumes map[string]bool) {
	seen := map[string]bool{}
	for i, mount := range ctr.VolumeMounts {
		field := fmt.Sprintf("%s.volumeMounts[%d]", field, i)
		if !volumes[mount.Name] {
			c.add(field+".name", "there is no volume %q", mount.Name)
		}
		if mount.MountPath == "" {
			c.add(field+".mountPath", "missing")
		}
		if seen[path.Clean(mount.MountPath)] {
			c.add(field+".mountPath", "%q appears twice", mount.MountPath)
		}
		seen[path.Clean(mount.MountPath)] = true
		if mount.SubPath != "" && mount.SubPathExpr != "" {
			c.add(field, "has both subPath and subPathExpr")
		}
		if !LocalPath(mount.SubPath) {
			c.add(field+".subPath", "%q is not a path inside the volume", mount.SubPath)
		}
		if !LocalPath(mount.SubPathExpr) {
			c.add(field+".subPathExpr", "%q is not a path inside the volume", mount.SubPathExpr)
		}
		if p := mount.MountPropagation; p != nil {
			switch *p {
			case corev1.MountPropagationNone, corev1.MountPropagationHostToContainer:
			case corev1.MountPropagationBidirectional:
				if !isTrue(security(ctr).Privileged) {
					c.add(field+".mountPropagation", "Bidirectional needs a privileged container")
				}
			default:
				c.add(field+".mountPropagation", "%q is none of None, HostToContainer and Bidirectional", *p)
			}
		}
		c.recursiveReadOnly(field, &mount)
		for i, option := range mount.BindMountOptions {
			switch corev1.BindMountOption(option) {
			case corev1.BindMountOptionNoExec, corev1.BindMountOptionNoDev, corev1.BindMountOptionNoSUID:
			default:
				c.add(fmt.Sprintf("%s.bindMountOptions[%d]", field, i), "%q is none of noexec, nodev and nosuid", option)
			}
		}
	}
}

// recursiveReadOnly checks what a kubelet's API server does.
func (c *checks) recursiveReadOnly(field string, mount *corev1.VolumeMount) {
	if mount.RecursiveReadOnly == nil {
		return
	}
	field += ".recursiveReadOnly"
	p := mount.MountPropagation
	switch r := *mount.RecursiveReadOnly; {
	case r == corev1.RecursiveReadOnlyDisabled:
	case r != corev1.RecursiveReadOnlyEnabled && r != corev1.RecursiveReadOnlyIfPossible:
		c.add(field, "%q is none of Disabled, IfPossible and Enabled", r)
	case !mount.ReadOnly:
		c.add(field, "needs readOnly")
	case p != nil && *p != corev1.MountPropagationNone:
		c.add(field, "needs mountPropagation: None")
	}
}

// claimMounts refuses paths inside named volumes, which the daemon mounts as a whole.
func (c *checks) claimMounts(spec *corev1.PodSpec) {
	claims := map[string]bool{}
	for _, v := range spec.Volumes {
		claims[v.Name] = v.PersistentVolumeClaim != nil
	}
	for ctr := range containers(spec) {
		for i, mount := range ctr.VolumeMounts {
			if claims[mount.Name] && mount.SubPath+mount.SubPathExpr != "" {
				c.add(fmt.Sprintf("container %s: volumeMounts[%d].subPath", ctr.Name, i),
					"not supported for a persistentVolumeClaim")
			}
		}
	}
}

// LocalPath says whether a path is relative and free of "..". An empty one is.
func LocalPath(p string) bool {
	if path.IsAbs(p) || strings.ContainsRune(p, 0) {
		return false
	}
	for _, part := range strings.Split(p, "/") {
		if part == ".." {
			return false
		}
	}
	return true
}

func (c *checks) resources(field string, r *corev1.ResourceRequirements) {
	for name, request := range r.Requests {
		if request.Sign() < 0 {
			c.add(field+".requests."+string(name), "%s is negative", request.String())
		}
		if limit, ok := r.Limits[name]; ok && request.Cmp(limit) > 0 {
			c.add(field+".requests."+string(name), "%s is more than the limit %s", request.String(), limit.String())
		}
	}
	for name, limit := range r.Limits {
		if limit.Sign() < 0 {
			c.add(field+".limits."+string(name), "%s is negative", limit.String())
		}
	}
	c.extended(field, r)
}

// extended checks resources of device plugins, of which there is no part and no surplus.
func (c *checks) extended(field string, r *corev1.ResourceRequirements) {
	for name, request := range r.Requests {
		if limit, ok := r.Limits[name]; extended(name) && (!ok || request.Cmp(limit) != 0) {
			c.add(field+".requests."+string(name), "%s is not the limit: devices are not overcommitted", request.String())
		}
	}
	for name, limit := range r.Limits {
		if n, whole := limit.AsInt64(); extended(name) && (!whole || n > math.MaxInt32) {
			c.add(field+".limits."+string(name), "%s is not a number of devices", limit.String())
		}
	}
}

// podSecurity checks the users, groups and sysctls of a pod, and what its fsGroup is for.
func (c *checks) podSecurity(field string, security *corev1.PodSecurityContext) {
	c.id(field+".runAsUser", security.RunAsUser)
	c.id(field+".runAsGroup", security.RunAsGroup)
	c.id(field+".fsGroup", security.FSGroup)
	for i, group := range security.SupplementalGroups {
		c.id(fmt.Sprintf("%s.supplementalGroups[%d]", field, i), &group)
	}
	sysctls := map[string]bool{}
	for i, sysctl := range security.Sysctls {
		name := strings.ReplaceAll(sysctl.Name, "/", ".")
		if name == "" || sysctls[name] {
			c.add(fmt.Sprintf("%s.sysctls[%d].name", field, i), "%q is missing or appears twice", sysctl.Name)
		}
		sysctls[name] = true
	}
	if p := security.FSGroupChangePolicy; p != nil && *p != corev1.FSGroupChangeAlways &&
		*p != corev1.FSGroupChangeOnRootMismatch {
		c.add(field+".fsGroupChangePolicy", "%q is neither Always nor OnRootMismatch", *p)
	}
	if p := security.SupplementalGroupsPolicy; p != nil && *p != corev1.SupplementalGroupsPolicyMerge &&
		*p != corev1.SupplementalGroupsPolicyStrict {
		c.add(field+".supplementalGroupsPolicy", "%q is neither Merge nor Strict", *p)
	}
}

// id checks the ID of a user or group, where there is one.
func (c *checks) id(field string, id *int64) {
	if id != nil && (*id < 0 || *id > math.MaxInt32) {
		c.add(field, "%d is not in 0-%d", *id, math.MaxInt32)
	}
}

func (c *checks) profiles(field string, seccomp *corev1.SeccompProfile, apparmor *corev1.AppArmorProfile) {
	if seccomp != nil {
		switch seccomp.Type {
		case corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined:
		case corev1.SeccompProfileTypeLocalhost:
			if seccomp.LocalhostProfile == nil || !LocalPath(*seccomp.LocalhostProfile) || *seccomp.LocalhostProfile == "" {
				c.add(field+".seccompProfile.localhostProfile", "must be a path below the directory of profiles")
			}
		default:
			c.add(field+".seccompProfile.type", "%q is none of RuntimeDefault, Unconfined and Localhost", seccomp.Type)
		}
	}
	if apparmor != nil {
		switch apparmor.Type {
		case corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined:
		case corev1.AppArmorProfileTypeLocalhost:
			if apparmor.LocalhostProfile == nil || strings.TrimSpace(*apparmor.LocalhostProfile) == "" {
				c.add(field+".appArmorProfile.localhostProfile", "missing")
			}
		default:
			c.add(field+".appArmorProfile.type", "%q is none of RuntimeDefault, Unconfined and Localhost", apparmor.Type)
		}
	}
}

func isTrue(b *bool) bool { return b != nil && *b }
