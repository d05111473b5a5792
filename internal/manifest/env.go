package manifest

import (
	"fmt"
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Variables are a container's environment in order, with what references to it are replaced by.
type Variables struct {
	Names  []string
	values map[string]string
}

// Value is the value of a variable.
func (v *Variables) Value(name string) string { return v.values[name] }

// Environment evaluates a container's environment. podIPs are the addresses of the running sandbox.
func (p *Pod) Environment(c *corev1.Container, host *Host, podIPs []string) (*Variables, error) {
	v := &Variables{values: map[string]string{}}
	for _, from := range c.EnvFrom {
		if r := from.ConfigMapRef; r != nil {
			v.add(p.variables(kindConfigMap, r.Name, from.Prefix))
		}
		if r := from.SecretRef; r != nil {
			v.add(p.variables(kindSecret, r.Name, from.Prefix))
		}
	}
	for _, env := range c.Env {
		value, ok, err := p.envValue(env, c, host, podIPs, v)
		if err != nil {
			return nil, fmt.Errorf("container %s: env %s: %w", c.Name, env.Name, err)
		}
		if !ok {
			continue // optional and missing, or of a source that was asked to be ignored
		}
		v.add([]string{env.Name}, map[string]string{env.Name: value})
	}
	return v, nil
}

// add sets variables. One that is set already keeps its place.
func (v *Variables) add(names []string, values map[string]string) {
	for _, name := range names {
		if _, seen := v.values[name]; !seen {
			v.Names = append(v.Names, name)
		}
		v.values[name] = values[name]
	}
}

func (p *Pod) envValue(env corev1.EnvVar, c *corev1.Container, host *Host, podIPs []string,
	v *Variables) (string, bool, error) {
	switch {
	case env.ValueFrom == nil:
		return v.Expand(env.Value), true, nil
	case env.ValueFrom.FieldRef != nil:
		value, err := p.fieldValue(env.ValueFrom.FieldRef.FieldPath, host, podIPs)
		return value, true, err
	case env.ValueFrom.ResourceFieldRef != nil:
		value, err := p.resourceValue(env.ValueFrom.ResourceFieldRef, c, host)
		return value, true, err
	case env.ValueFrom.ConfigMapKeyRef != nil:
		ref := env.ValueFrom.ConfigMapKeyRef
		value, ok := p.keyValue(kindConfigMap, ref.Name, ref.Key)
		return value, ok, nil
	case env.ValueFrom.SecretKeyRef != nil:
		ref := env.ValueFrom.SecretKeyRef
		value, ok := p.keyValue(kindSecret, ref.Name, ref.Key)
		return value, ok, nil
	}
	return "", false, nil
}

// Expand replaces $(NAME) by the variable of that name. $$ stands for $, and a reference to nothing stays as it is: the
// rules of command, args and env in the Pod API.
func (v *Variables) Expand(text string) string {
	expanded, _ := v.expand(text)
	return expanded
}

// ExpandPath expands a subPathExpr, in which a reference to nothing is an error: for a kubelet, too.
func (v *Variables) ExpandPath(text string) (string, error) {
	expanded, missing := v.expand(text)
	if len(missing) > 0 {
		return "", fmt.Errorf("the container has no variable %s", strings.Join(missing, ", "))
	}
	return expanded, nil
}

// expand replaces the references of a text, and lists those to nothing, which stay.
func (v *Variables) expand(text string) (expanded string, missing []string) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '$' || i+1 == len(text) {
			b.WriteByte(text[i])
			continue
		}
		switch text[i+1] {
		case '$':
			b.WriteByte('$')
			i++
		case '(':
			end := strings.IndexByte(text[i+2:], ')')
			if end < 0 {
				b.WriteByte('$')
				continue
			}
			name := text[i+2 : i+2+end]
			if value, ok := v.values[name]; ok {
				b.WriteString(value)
			} else {
				b.WriteString("$(" + name + ")")
				missing = append(missing, name)
			}
			i += 2 + end
		default:
			b.WriteByte('$')
		}
	}
	return b.String(), missing
}

// subscript takes metadata.labels['key'] apart.
func subscript(path string) (base, key string, ok bool) {
	base, rest, found := strings.Cut(path, "['")
	key, tail, closed := strings.Cut(rest, "']")
	return base, key, found && closed && tail == ""
}

// knownField says whether a field path of the downward API has a value here.
func knownField(path string) bool {
	if base, _, ok := subscript(path); ok {
		return base == "metadata.labels" || base == "metadata.annotations"
	}
	switch path {
	case "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "status.hostIP", "status.hostIPs",
		"status.podIP", "status.podIPs":
		return true
	}
	return false
}

func (p *Pod) fieldValue(path string, host *Host, podIPs []string) (string, error) {
	if base, key, ok := subscript(path); ok {
		if base == "metadata.labels" {
			return p.Labels[key], nil
		}
		return p.Annotations[key], nil
	}
	switch path {
	case "metadata.name":
		return p.Name, nil
	case "metadata.namespace":
		return p.Namespace, nil
	case "metadata.uid":
		return string(p.UID), nil
	case "spec.nodeName":
		if p.Spec.NodeName != "" {
			return p.Spec.NodeName, nil
		}
		return host.Name, nil
	case "status.hostIP":
		return first(host.IPs), nil
	case "status.hostIPs":
		return strings.Join(host.IPs, ","), nil
	case "status.podIP", "status.podIPs":
		ips := podIPs
		if p.Spec.HostNetwork {
			ips = host.IPs
		}
		if path == "status.podIP" {
			return first(ips), nil
		}
		return strings.Join(ips, ","), nil
	}
	return "", fmt.Errorf("field %q is not supported", path)
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

func knownResource(name string) bool {
	switch name {
	case "limits.cpu", "limits.memory", "requests.cpu", "requests.memory":
		return true
	}
	return false
}

// resourceValue divides and rounds up, as the downward API does. A limit that is not set is what the node has.
func (p *Pod) resourceValue(ref *corev1.ResourceFieldSelector, c *corev1.Container, host *Host) (string, error) {
	if ref.ContainerName != "" && ref.ContainerName != c.Name {
		var found *corev1.Container
		for other := range containers(&p.Spec) {
			if other.Name == ref.ContainerName {
				found = other
			}
		}
		if found == nil {
			return "", fmt.Errorf("there is no container %q", ref.ContainerName)
		}
		c = found
	}
	list, name, _ := strings.Cut(ref.Resource, ".")
	var quantity resource.Quantity
	if list == "requests" {
		quantity = c.Resources.Requests[corev1.ResourceName(name)]
	} else {
		quantity = c.Resources.Limits[corev1.ResourceName(name)]
	}
	cpu := name == string(corev1.ResourceCPU)
	if quantity.IsZero() && list == "limits" {
		if cpu {
			quantity = *resource.NewMilliQuantity(host.MilliCPU, resource.DecimalSI)
		} else {
			quantity = *resource.NewQuantity(host.Memory, resource.BinarySI)
		}
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if cpu {
		return fmt.Sprint(divideUp(quantity.MilliValue(), divisor.MilliValue())), nil
	}
	return fmt.Sprint(divideUp(quantity.Value(), divisor.Value())), nil
}

func divideUp(value, divisor int64) int64 {
	return int64(math.Ceil(float64(value) / float64(divisor)))
}
