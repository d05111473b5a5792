package manifest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// supervision checks what is done for a container while it runs.
func (c *checks) supervision(field string, ctr *corev1.Container, isInit bool) {
	for _, p := range []struct {
		name  string
		probe *corev1.Probe
		ready bool
	}{{"startupProbe", ctr.StartupProbe, false}, {"livenessProbe", ctr.LivenessProbe, false},
		{"readinessProbe", ctr.ReadinessProbe, true}} {
		if p.probe == nil {
			continue
		}
		field := field + "." + p.name
		if isInit {
			c.add(field, "is not for an init container that ends")
		}
		c.probe(field, ctr, p.probe, p.ready)
	}
	if l := ctr.Lifecycle; l != nil {
		for name, hook := range map[string]*corev1.LifecycleHandler{"postStart": l.PostStart, "preStop": l.PreStop} {
			if hook == nil {
				continue
			}
			field := field + ".lifecycle." + name
			if isInit {
				c.add(field, "is not for an init container that ends")
			}
			c.hook(field, ctr, hook)
		}
	}
}

func (c *checks) probe(field string, ctr *corev1.Container, p *corev1.Probe, ready bool) {
	for name, value := range map[string]int32{"initialDelaySeconds": p.InitialDelaySeconds,
		"timeoutSeconds": p.TimeoutSeconds, "periodSeconds": p.PeriodSeconds, "successThreshold": p.SuccessThreshold,
		"failureThreshold": p.FailureThreshold} {
		if value < 0 {
			c.add(field+"."+name, "%d is negative", value)
		}
	}
	if !ready && p.SuccessThreshold > 1 {
		c.add(field+".successThreshold", "%d is not 1", p.SuccessThreshold)
	}
	if g := p.TerminationGracePeriodSeconds; g != nil && (ready || *g < 1) {
		c.add(field+".terminationGracePeriodSeconds", "%d is not positive, or the probe does not end the container", *g)
	}
	actions := 0
	if p.Exec != nil {
		actions++
		c.command(field+".exec", p.Exec)
	}
	if p.HTTPGet != nil {
		actions++
		c.httpGet(field+".httpGet", ctr, p.HTTPGet)
	}
	if p.TCPSocket != nil {
		actions++
		c.port(field+".tcpSocket.port", ctr, p.TCPSocket.Port)
	}
	if p.GRPC != nil {
		actions++
		c.port(field+".grpc.port", ctr, intstr.FromInt32(p.GRPC.Port))
	}
	if actions != 1 {
		c.add(field, "has one of exec, httpGet, tcpSocket and grpc")
	}
}

func (c *checks) hook(field string, ctr *corev1.Container, hook *corev1.LifecycleHandler) {
	actions := 0
	if hook.Exec != nil {
		actions++
		c.command(field+".exec", hook.Exec)
	}
	if hook.HTTPGet != nil {
		actions++
		c.httpGet(field+".httpGet", ctr, hook.HTTPGet)
	}
	if hook.Sleep != nil {
		actions++
		if hook.Sleep.Seconds < 0 {
			c.add(field+".sleep.seconds", "%d is negative", hook.Sleep.Seconds)
		}
	}
	if hook.TCPSocket != nil {
		c.add(field+".tcpSocket", "is not supported: a kubelet runs no such hook")
	} else if actions != 1 {
		c.add(field, "has one of exec, httpGet and sleep")
	}
}

func (c *checks) command(field string, exec *corev1.ExecAction) {
	if len(exec.Command) == 0 {
		c.add(field+".command", "missing")
	}
}

func (c *checks) httpGet(field string, ctr *corev1.Container, get *corev1.HTTPGetAction) {
	c.port(field+".port", ctr, get.Port)
	if get.Scheme != "" && get.Scheme != corev1.URISchemeHTTP && get.Scheme != corev1.URISchemeHTTPS {
		c.add(field+".scheme", "%q is neither HTTP nor HTTPS", get.Scheme)
	}
	for i, header := range get.HTTPHeaders {
		c.syntax(fmt.Sprintf("%s.httpHeaders[%d].name", field, i), header.Name, validation.IsHTTPHeaderName(header.Name))
	}
}

func (c *checks) port(field string, ctr *corev1.Container, port intstr.IntOrString) {
	if port.Type == intstr.Int {
		if port.IntVal < 1 || port.IntVal > 65535 {
			c.add(field, "%d is not in 1-65535", port.IntVal)
		}
		return
	}
	for _, p := range ctr.Ports {
		if p.Name == port.StrVal {
			return
		}
	}
	c.add(field, "the container has no port with the name %q", port.StrVal)
}
