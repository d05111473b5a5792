package life

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node/nodetest"
)

// Whoever has the host's /dev/null as a standard stream, and root's rights on the host, can take it away from the host
// with fchmod and fchown. In a user namespace a container has no such rights, and its /dev/null is the host's, mounted.
// Seen to fail, for the execs of every runtime, with os.DevNull in place of null.Open.
func TestNoContainerHasTheHostsNullDevice(t *testing.T) {
	n := nodetest.Shared(t)
	nodetest.BerthOnly(t, "containerd gives its runtime the host's")
	null := func(path string) syscall.Stat_t {
		t.Helper()
		var st syscall.Stat_t
		if err := syscall.Stat(path, &st); err != nil {
			t.Fatal(path, err)
		}
		return st
	}
	host := null(os.DevNull)
	own := fmt.Sprintf("%d:%d", host.Dev, host.Ino)
	const base = 231072 // no other test's
	for _, handler := range []string{"", "runc", "crun"} {
		for namespace, options := range map[string]*cri.NamespaceOption{
			"host users": {Pid: cri.NamespaceMode_CONTAINER},
			"own users":  {Pid: cri.NamespaceMode_CONTAINER, UsernsOptions: userNamespace(base, 65536)},
		} {
			for _, tty := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/terminal %t", handler, namespace, tty), func(t *testing.T) {
					nodetest.Handler(t, n, handler)
					if handler != "" && options.UsernsOptions != nil {
						t.Skip("runtime handlers of type oci with an old binary have no user namespaces")
					}
					p := nodetest.RunPodHandler(t, n, handler, podNamespaces(options))
					c := p.Run(func(c *cri.ContainerConfig) { c.Tty, c.Stdin = tty, false })
					pid := hostPID(t, c)
					for fd := range 3 {
						st := null(fmt.Sprintf("/proc/%d/fd/%d", pid, fd))
						if options.UsernsOptions == nil && st.Dev == host.Dev && st.Ino == host.Ino {
							t.Errorf("stream %d of the init process is the host's /dev/null", fd)
						}
					}
					for fd, id := range strings.Fields(c.Sh("for fd in 0 1 2; do stat -L -c %d:%i /proc/self/fd/$fd; done")) {
						if id == own {
							t.Errorf("stream %d of an exec is the host's /dev/null", fd)
						}
					}
					if got := c.Sh("stat -L -c '%t:%T %a' /proc/self/fd/0; cat; cat </dev/stdin; echo read"); got != "1:3 666\nread" {
						t.Errorf("the stdin of an exec: %q", got)
					}
					if st := null(os.DevNull); st.Uid == base || st.Gid == base {
						t.Errorf("the host's /dev/null belongs to %d:%d", st.Uid, st.Gid)
					}
				})
			}
		}
	}
}
