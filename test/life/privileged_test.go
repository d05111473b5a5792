package life

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node/nodetest"
)

// TestAPrivilegedContainerIsAddedToAPod that was not privileged when it was made, as `kubectl debug --profile=sysadmin`
// does: the kubelet then calls the pod privileged. A client that does not is refused, and so is a pod with a user
// namespace. Seen to fail where the pod's own record decides, and without the check of the user namespace.
func TestAPrivilegedContainerIsAddedToAPod(t *testing.T) {
	n := nodetest.Shared(t)
	privileged := nodetest.Security(func(s *cri.LinuxContainerSecurityContext) { s.Privileged = true })
	refused := func(p *nodetest.Pod, why string) {
		t.Helper()
		_, err := p.TryCreate(privileged)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), why) {
			t.Errorf("got %v", err)
		}
	}
	p := nodetest.RunPod(t, n)
	c := p.Run()
	refused(p, "the sandbox was not made for that")
	p.Config.Linux.SecurityContext.Privileged = true
	const setHostname = "hostname web-debug && hostname"
	if got := strings.TrimSpace(p.Output(setHostname, privileged)); got != "web-debug" {
		t.Errorf("the privileged container has set the host name to %q", got)
	}
	if r, err := c.Exec(60, "sh", "-c", setHostname); err != nil || r.ExitCode == 0 {
		t.Errorf("the container of before may set the host name: %d, %v", r.ExitCode, err)
	}
	user := nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{UsernsOptions: userNamespace(200000, 65536)}))
	user.Config.Linux.SecurityContext.Privileged = true
	refused(user, "the pod has a user namespace")
}

// TestTheGroupOfAPodNeedsNoUser: a pod has no process of its image, so neither has a meaning. Seen to fail where a
// group without a user was refused, as that of a container is.
func TestTheGroupOfAPodNeedsNoUser(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n, podSecurity(func(s *cri.LinuxSandboxSecurityContext) {
		s.RunAsGroup = &cri.Int64Value{Value: 1000}
	}))
	if got := strings.TrimSpace(p.Output("id -g")); got != "0" {
		t.Errorf("the container has group %s", got)
	}
	_, err := p.TryCreate(nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
		s.RunAsGroup = &cri.Int64Value{Value: 1000}
	}))
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a container with a group and no user: %v", err)
	}
}
