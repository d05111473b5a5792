package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/test/kubernetes"
	"berth/test/node"
)

const containerdSocket = "/run/containerd/containerd.sock"

// containerdConfig is containerd's on a node: the registry that Berth has, and CNI's configuration in a directory of
// its own.
const containerdConfig = `
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
address = "` + containerdSocket + `"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "` + node.Pause + `"
[plugins."io.containerd.cri.v1.images".registry]
config_path = "/etc/berth/certs.d"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "/etc/containerd/net.d"
`

// TestANodeGoesToContainerdAndBack drains a node, gives its kubelet containerd in Berth's place, and then Berth again,
// while clients ask on every node's port: no request fails, the kubelet is content with either, and pods that come to
// the node run. The way to Berth is that of an operator: `berth migrate containerd` brings the images along for a node
// that reaches no registry, and its --revert leads back to containerd. At the end the way to Berth is by hand.
func TestANodeGoesToContainerdAndBack(t *testing.T) {
	programs, err := kubernetes.BuildContainerd(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := tell(t)
	s.apply(spread("web"))
	s.rolledOut("deployment/web")
	m := s.c.nodes[1]
	l := s.c.startLoad(4, "/hostname", s.nodePorts("web")...)
	visit := func(runtime string) {
		t.Helper()
		s.eventually(2*time.Minute, m.name+" is ready with "+runtime, func() error {
			got, err := s.try("", "get", "node", m.name, "-o",
				`jsonpath={.status.nodeInfo.containerRuntimeVersion} {.status.conditions[?(@.type=="Ready")].status}`)
			if err == nil && (!strings.HasPrefix(got, runtime+"://") || !strings.HasSuffix(got, " True")) {
				err = errors.New(got)
			}
			return err
		})
		s.kubectl("", "uncordon", m.name)
		s.kubectl("", "rollout", "restart", "deployment/web") // spreads the pods anew
		s.rolledOut("deployment/web")
		s.eventually(time.Minute, "pods are on "+m.name, func() error {
			for _, p := range on(s.pods("web"), m) {
				id := ""
				if p.ready() {
					id = p.Status.ContainerStatuses[0].ContainerID
				}
				if strings.HasPrefix(id, runtime+"://") {
					got, err := s.sh(p.Metadata.Name, "hostname")
					if err == nil && got != p.Metadata.Name {
						err = fmt.Errorf("its host name is %q", got)
					}
					return err
				}
			}
			return errors.New("none")
		})
	}
	s.drain(m)
	if err := m.toContainerd(t.Context(), programs); err != nil {
		t.Fatalf("%v\n%s", err, m.tails())
	}
	visit("containerd")
	s.drain(m)
	if err := m.migrate(t.Context(), agnhost); err != nil {
		t.Fatalf("%v\n%s", err, m.tails())
	}
	visit("berth")
	s.drain(m)
	if err := m.revert(t.Context(), programs); err != nil {
		t.Fatalf("%v\n%s", err, m.tails())
	}
	visit("containerd")
	s.drain(m)
	if err := m.toBerth(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, m.tails())
	}
	visit("berth")
	l.end(t)
}

// toContainerd gives the node containerd in Berth's place. It has no pods.
func (m *member) toContainerd(ctx context.Context, programs string) error {
	if err := m.kubelet.Stop(ctx, "TERM"); err != nil {
		return err
	}
	if err := m.berthd.Stop(ctx, "TERM"); err != nil {
		return err
	}
	if _, err := m.host.Run(ctx, "sh", "-c", "kill $(pidof berth-keeper)"); err != nil {
		return err
	}
	cni, err := m.cniConfig()
	if err != nil {
		return err
	}
	for path, content := range map[string]string{
		"/etc/containerd/config.toml": containerdConfig, "/etc/containerd/net.d/10-cluster.conflist": cni,
	} {
		cmd := m.host.Command(ctx, "sh", "-ec", `mkdir -p "$(dirname "$1")"; cat > "$1"`, "sh", path)
		cmd.Stdin = strings.NewReader(content)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("write %s: %w: %s", path, err, out)
		}
	}
	if err := m.startContainerd(programs); err != nil {
		return err
	}
	return m.useSocket(ctx, m.socket(), containerdSocket)
}

func (m *member) startContainerd(programs string) (err error) {
	m.containerd, err = m.host.Service("containerd", "sh", "-c",
		`PATH="$1:$PATH" exec "$1/containerd" --config /etc/containerd/config.toml`, "sh", programs)
	return err
}

// migrate gives the node Berth in containerd's place, by the command for it. Berth has no images, and its registries
// cannot be reached.
func (m *member) migrate(ctx context.Context, images ...string) error {
	if err := m.kubelet.Stop(ctx, "TERM"); err != nil {
		return err
	}
	if err := m.containerd.Stop(ctx, "TERM"); err != nil {
		return err
	}
	if _, err := m.host.Run(ctx, "sh", "-ec", `rm -rf /var/lib/berth/*; cp -a /etc/berth /etc/berth.before
		sed -i 's#http://[^"]*#http://127.0.0.1:1#' /etc/berth/certs.d/*/hosts.toml`); err != nil {
		return err
	}
	berth := filepath.Join(berthPrograms, "berth")
	out, err := m.host.Run(ctx, berth, "migrate", "containerd", "--kubelet-config", "/etc/kubernetes/kubelet.json")
	if err != nil {
		return err
	}
	if !strings.Contains(out, "packed sha256:") {
		return fmt.Errorf("containerd's images are not packed: %s", out)
	}
	if err := m.startBerth(ctx); err != nil {
		return err
	}
	if err := within(2*time.Minute, "the images are there", func() error {
		list, err := m.host.Run(ctx, berth, "images", "-o", "json")
		for _, image := range images {
			if err == nil && !strings.Contains(list, image) {
				err = fmt.Errorf("%s is not in %s", image, list)
			}
		}
		return err
	}); err != nil {
		return err
	}
	return m.startKubelet()
}

// revert is the way back from migrate.
func (m *member) revert(ctx context.Context, programs string) error {
	if err := m.kubelet.Stop(ctx, "TERM"); err != nil {
		return err
	}
	if err := m.berthd.Stop(ctx, "TERM"); err != nil {
		return err
	}
	if _, err := m.host.Run(ctx, "sh", "-c", "kill $(pidof berth-keeper)"); err != nil {
		return err
	}
	if _, err := m.host.Run(ctx, filepath.Join(berthPrograms, "berth"), "migrate", "containerd", "--revert"); err != nil {
		return err
	}
	_, err := m.host.Run(ctx, "sh", "-ec", `cp -a /etc/berth.before/certs.d /etc/berth/
		diff -r /etc/berth.before /etc/berth
		rm -rf /etc/berth.before; grep -q unix:///run/containerd/containerd.sock /etc/kubernetes/kubelet.json`)
	if err != nil {
		return fmt.Errorf("the files are not as they were: %w", err)
	}
	if err := m.startContainerd(programs); err != nil {
		return err
	}
	if err := within(time.Minute, "containerd answers", func() error {
		_, err := m.host.Run(ctx, "test", "-S", containerdSocket)
		return err
	}); err != nil {
		return err
	}
	return m.startKubelet()
}

// toBerth is the way back.
func (m *member) toBerth(ctx context.Context) error {
	if err := m.kubelet.Stop(ctx, "TERM"); err != nil {
		return err
	}
	if err := m.containerd.Stop(ctx, "TERM"); err != nil {
		return err
	}
	if err := m.startBerth(ctx); err != nil {
		return err
	}
	if err := m.useSocket(ctx, containerdSocket, m.socket()); err != nil || m.cni {
		return err
	}
	// The bridge of containerd's plugins has the range of Berth's own: the node says so, until it is removed.
	if err := within(2*time.Minute, "the node names the interface that has the pods' range", func() error {
		said, err := m.c.kubectl(ctx, "", "get", "node", m.name, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")]}`)
		if err == nil && !strings.Contains(said, "ip link delete cni0") {
			err = errors.New(said)
		}
		return err
	}); err != nil {
		return err
	}
	_, err := m.host.Run(ctx, "ip", "link", "delete", "cni0")
	return err
}

// useSocket starts the kubelet with another runtime's socket, once that is there.
func (m *member) useSocket(ctx context.Context, before, after string) error {
	if err := within(time.Minute, after+" is there", func() error {
		_, err := m.host.Run(ctx, "test", "-S", after)
		return err
	}); err != nil {
		return err
	}
	change := "s#unix://" + before + "#unix://" + after + "#"
	if _, err := m.host.Run(ctx, "sed", "-i", change, "/etc/kubernetes/kubelet.json"); err != nil {
		return err
	}
	return m.startKubelet()
}
