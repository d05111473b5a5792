package imagepod

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/distribution/reference"
	"github.com/docker/go-units"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"berth/internal/manifest"
)

// Documents are the pod of an image and a command, as a manifest. Without a name the pod gets one after the image.
func (o *Options) Documents(name, image string, command []string, detach bool) (*manifest.Documents, error) {
	base, err := shortName(image)
	if err != nil {
		return nil, err
	}
	pod := &corev1.Pod{}
	pod.Name = name
	if name == "" {
		pod.GenerateName = base + "-"
	}
	user := ""
	c := corev1.Container{Name: base, Image: image, Stdin: o.Stdin, TTY: o.TTY, WorkingDir: o.workdir,
		// Input that is passed to one command ends with it. What is left running can be attached to again and again.
		StdinOnce: o.Stdin && !detach, Args: literals(command)}
	if o.flags.Changed("entrypoint") {
		if o.entrypoint == "" {
			return nil, flagError("entrypoint", "", "name a program; without the flag the image's entrypoint runs")
		}
		c.Command = literals([]string{o.entrypoint})
	}
	policy, known := pullPolicies[o.pull]
	if !known {
		return nil, flagError("pull", o.pull, "is none of %s", strings.Join(PullWords, ", "))
	}
	c.ImagePullPolicy = policy
	if err := CheckDirectory(o.workdir); err != nil {
		return nil, err
	}
	if c.Env, err = Variables(o.env); err != nil {
		return nil, err
	}
	for i := range c.Env {
		c.Env[i].Value = literal(c.Env[i].Value)
	}
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod.Spec.TerminationGracePeriodSeconds = &o.stopTimeout
	if o.stopTimeout < 0 {
		return nil, flagError("stop-timeout", strconv.FormatInt(o.stopTimeout, 10), "is negative")
	}
	if pod.Labels, err = labels(o.labels); err != nil {
		return nil, err
	}
	if c.SecurityContext, user, err = o.security(); err != nil {
		return nil, err
	}
	if c.Resources.Limits, err = o.limits(); err != nil {
		return nil, err
	}
	if err := o.connect(&pod.Spec, &c); err != nil {
		return nil, err
	}
	if err := mount(&pod.Spec, &c, o.volumes); err != nil {
		return nil, err
	}
	pod.Spec.Containers = []corev1.Container{c}
	return manifest.OfImage(pod, user)
}

// shortName is the last part of an image's name, as the name of a container can be.
func shortName(image string) (string, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		// An ID of an image is a reference, too.
		if hex := strings.TrimPrefix(image, "sha256:"); len(hex) == 64 {
			return "image", nil
		}
		return "", fmt.Errorf("image %q: %w", image, err)
	}
	const longest = 40
	name := strings.NewReplacer("_", "-", ".", "-").Replace(path.Base(reference.Path(named)))
	name = strings.Trim(name[:min(len(name), longest)], "-")
	if len(validation.IsDNS1123Label(name)) > 0 {
		return "image", nil
	}
	return name, nil
}

// literals protects words from the replacement of $(NAME), which a manifest has and a command line has not.
func literals(words []string) []string {
	var all []string
	for _, word := range words {
		all = append(all, literal(word))
	}
	return all
}

func literal(word string) string { return strings.ReplaceAll(word, "$", "$$") }

// CheckDirectory says what is wrong with the value of --workdir.
func CheckDirectory(directory string) error {
	if directory != "" && !path.IsAbs(directory) {
		return flagError("workdir", directory, "is not an absolute path")
	}
	return nil
}

// Variables are those of --env, with the values of this process for those that have none. A later one of the same name
// counts.
func Variables(list []string) ([]corev1.EnvVar, error) {
	var all []corev1.EnvVar
	for _, text := range list {
		name, value, said := strings.Cut(text, "=")
		if problems := validation.IsRelaxedEnvVarName(name); len(problems) > 0 {
			return nil, flagError("env", text, "%s", strings.Join(problems, "; "))
		}
		if !said {
			var set bool
			if value, set = os.LookupEnv(name); !set {
				continue // as docker and podman do
			}
		}
		all = append(all, corev1.EnvVar{Name: name, Value: value})
	}
	return all, nil
}

func labels(list []string) (map[string]string, error) {
	all := map[string]string{}
	for _, text := range list {
		name, value, _ := strings.Cut(text, "=")
		problems := append(validation.IsQualifiedName(name), validation.IsValidLabelValue(value)...)
		if len(problems) > 0 {
			return nil, flagError("label", text, "%s", strings.Join(problems, "; "))
		}
		all[name] = value
	}
	return all, nil
}

// security is the container's security context, and the name of its user where --user gives one.
func (o *Options) security() (context *corev1.SecurityContext, name string, err error) {
	context = &corev1.SecurityContext{}
	if o.privileged {
		context.Privileged = &o.privileged
	}
	if o.readOnly {
		context.ReadOnlyRootFilesystem = &o.readOnly
	}
	if o.user == "" {
		return context, "", nil
	}
	user, group, grouped := strings.Cut(o.user, ":")
	if id, err := strconv.ParseInt(user, 10, 64); err == nil {
		if id < 0 || id > maxID {
			return nil, "", flagError("user", o.user, "%d is no user's number", id)
		}
		context.RunAsUser = &id
	} else if user == "" {
		return nil, "", flagError("user", o.user, "has no user")
	} else {
		name = user
	}
	if grouped {
		id, err := strconv.ParseInt(group, 10, 64)
		if err != nil || id < 0 || id > maxID {
			return nil, "", flagError("user", o.user, "the group has to be a number: the CRI passes no names of groups")
		}
		context.RunAsGroup = &id
	}
	return context, name, nil
}

// maxID is the largest ID of a user or group.
const maxID = 1<<32 - 2

// smallestMemory is less than any program needs: a limit below it is a mistake, such as a unit that was forgotten.
const smallestMemory = 1 << 20

func (o *Options) limits() (corev1.ResourceList, error) {
	limits := corev1.ResourceList{}
	if o.memory != "" {
		bytes, err := units.RAMInBytes(o.memory)
		switch {
		case err != nil:
			return nil, flagError("memory", o.memory, "is no size; 512m is one")
		case bytes < smallestMemory:
			return nil, flagError("memory", o.memory, "is less than 1 MiB; 512m are 512 MiB")
		}
		limits[corev1.ResourceMemory] = *resource.NewQuantity(bytes, resource.BinarySI)
	}
	if o.cpus != "" {
		cpus, err := strconv.ParseFloat(o.cpus, 64)
		if err != nil || !(cpus >= 0.001 && cpus <= 1e6) {
			return nil, flagError("cpus", o.cpus, "is no number of CPUs; 1.5 is one")
		}
		limits[corev1.ResourceCPU] = *resource.NewMilliQuantity(int64(cpus*1000+0.5), resource.DecimalSI)
	}
	return limits, nil
}

// connect gives the pod its network, and the container its ports.
func (o *Options) connect(spec *corev1.PodSpec, c *corev1.Container) error {
	switch o.network {
	case "":
	case "host":
		if len(o.ports) > 0 {
			return errors.New("--publish and --network host exclude each other: on the host's network all ports are the host's")
		}
		spec.HostNetwork = true
	default:
		return flagError("network", o.network,
			"only host can be named; without the flag the pod is in the network of the node's CNI configuration or bridge")
	}
	for _, text := range o.ports {
		port, err := publish(text)
		if err != nil {
			return err
		}
		c.Ports = append(c.Ports, *port)
	}
	return nil
}

// publish reads [IP:]HOST:CONTAINER[/PROTOCOL]. An address of IPv6 stands in brackets.
func publish(text string) (*corev1.ContainerPort, error) {
	rest, protocol, said := strings.Cut(text, "/")
	port := &corev1.ContainerPort{Protocol: corev1.ProtocolTCP}
	if said {
		port.Protocol = corev1.Protocol(strings.ToUpper(protocol))
		switch port.Protocol {
		case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		default:
			return nil, flagError("publish", text, "the protocol %q is none of tcp, udp and sctp", protocol)
		}
	}
	at := strings.LastIndexByte(rest, ':')
	if at < 0 {
		return nil, flagError("publish", text, "give a port of the host, too, as in 8080:80")
	}
	host, container := rest[:at], rest[at+1:]
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		port.HostIP, host = strings.Trim(host[:i], "[]"), host[i+1:]
		if net.ParseIP(port.HostIP) == nil {
			return nil, flagError("publish", text, "%q is not an IP address", port.HostIP)
		}
	}
	for _, number := range []string{host, container} {
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil || n == 0 {
			return nil, flagError("publish", text, "%q is not a port; 8080:80 publishes port 80 as 8080", number)
		}
		port.HostPort, port.ContainerPort = port.ContainerPort, int32(n)
	}
	return port, nil
}

// mount adds the volumes of --volume.
func mount(spec *corev1.PodSpec, c *corev1.Container, list []string) error {
	for i, text := range list {
		parts := strings.Split(text, ":")
		mount := corev1.VolumeMount{Name: "volume-" + strconv.Itoa(i)}
		volume := corev1.Volume{Name: mount.Name}
		switch {
		case len(parts) == 1:
			volume.EmptyDir = &corev1.EmptyDirVolumeSource{}
			parts = []string{"", text}
		case len(parts) > 3 || parts[0] == "":
			return flagError("volume", text, "has not the form SOURCE:TARGET[:ro]")
		default:
			if err := source(&volume, parts[0]); err != nil {
				return fmt.Errorf("--volume %q: %w", text, err)
			}
		}
		if mount.MountPath = parts[1]; !path.IsAbs(mount.MountPath) {
			return flagError("volume", text, "%q is not an absolute path in the container", mount.MountPath)
		}
		if len(parts) == 3 {
			switch parts[2] {
			case "ro":
				mount.ReadOnly = true
			case "rw":
			default:
				return flagError("volume", text, "the option %q is none of ro and rw", parts[2])
			}
		}
		spec.Volumes, c.VolumeMounts = append(spec.Volumes, volume), append(c.VolumeMounts, mount)
	}
	return nil
}

// source is a path of the host where it begins with / or a dot, and otherwise the name of a volume.
func source(volume *corev1.Volume, text string) error {
	if !path.IsAbs(text) && !strings.HasPrefix(text, ".") {
		if problems := validation.IsDNS1123Subdomain(text); len(problems) > 0 {
			return fmt.Errorf("%q is neither a path (/srv, ./srv) nor the name of a volume: %s", text,
				strings.Join(problems, "; "))
		}
		volume.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: text}
		return nil
	}
	at, err := filepath.Abs(text)
	if err != nil {
		return err
	}
	if _, err := os.Stat(at); err != nil {
		return err
	}
	volume.HostPath = &corev1.HostPathVolumeSource{Path: at}
	return nil
}
