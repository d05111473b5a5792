package life

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// broken is a registry of a test's own, under a name of its own on the shared node.
func broken(t *testing.T, n *node.Node, options ...registrytest.Option) (*registrytest.Registry, string) {
	t.Helper()
	r, err := registrytest.New(options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	host := fmt.Sprintf("r%d.test", time.Now().UnixNano())
	if err := r.HostsDir(n.HostsDir, host); err != nil {
		t.Fatal(err)
	}
	return r, host
}

func image(t *testing.T, options ...registrytest.ImageOption) v1.Image {
	t.Helper()
	made, err := registrytest.Image(options...)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func push(t *testing.T, r *registrytest.Registry, name string, what any) {
	t.Helper()
	if err := r.Push(name, what); err != nil {
		t.Fatal(err)
	}
}

func pull(t *testing.T, n *node.Node, ref string, auth *cri.AuthConfig) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), node.Patience(time.Minute))
	defer cancel()
	_, err := n.Images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}, Auth: auth})
	return err
}

func wantNoImage(t *testing.T, n *node.Node, ref string) {
	t.Helper()
	r, err := n.Images.ImageStatus(nodetest.Context(t), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})
	if err != nil {
		t.Errorf("image status of what was not pulled: %v", err)
	} else if r.Image != nil {
		t.Errorf("the node has %v", r.Image)
	}
}

func TestAnImageThatDoesNotExist(t *testing.T) {
	n := nodetest.Shared(t)
	for _, ref := range []string{node.RegistryHost + "/no/such:1", node.RegistryHost + "/busybox:none",
		node.RegistryHost + "/busybox@sha256:" + strings.Repeat("0", 64)} {
		err := pull(t, n, ref, nil)
		nodetest.WantCode(t, err, codes.NotFound)
		wantNoImage(t, n, ref)
	}
	p := nodetest.RunPod(t, n)
	config := p.ContainerConfig(func(c *cri.ContainerConfig) { c.Image.Image = node.RegistryHost + "/never-pulled:1" })
	_, err := n.Runtime.CreateContainer(nodetest.Context(t),
		&cri.CreateContainerRequest{PodSandboxId: p.ID, Config: config, SandboxConfig: p.Config})
	nodetest.WantCode(t, err, codes.NotFound)
}

func TestAReferenceThatIsNone(t *testing.T) {
	n := nodetest.Shared(t)
	for _, ref := range []string{"", "registry.test/UPPER:1", "a b",
		"registry.test/x@sha256:zz", "registry.test/x:" + strings.Repeat("t", 200), "//", "registry.test/../x:1"} {
		if err := pull(t, n, ref, nil); err == nil {
			t.Errorf("%q is pulled", ref)
		} else if !nodetest.Containerd() {
			nodetest.WantCode(t, err, codes.InvalidArgument)
		}
	}
}

func TestARegistryThatIsDown(t *testing.T) {
	t.Parallel()
	nodetest.BerthOnly(t, "its codes differ")
	n := nodetest.Shared(t)
	r, host := broken(t, n)
	push(t, r, "x:1", image(t, registrytest.WithFiles(map[string]string{"a": "b"})))
	r.SetFaults(registrytest.Faults{Down: true})
	wantUnavailable(t, pull(t, n, host+"/x:1", nil))
	wantNoImage(t, n, host+"/x:1")
	r.SetFaults(registrytest.Faults{Status: 503})
	wantUnavailable(t, pull(t, n, host+"/x:1", nil))
	r.SetFaults(registrytest.Faults{Status: 429})
	nodetest.WantCode(t, pull(t, n, host+"/x:1", nil), codes.Unavailable)
	r.SetFaults(registrytest.Faults{})
	if err := pull(t, n, host+"/x:1", nil); err != nil {
		t.Errorf("once it is up again: %v", err)
	}
}

// wantUnavailable checks that a kubelet sees that the registry is to blame: by the first word of the text, which it
// compares where the code is Unknown.
func wantUnavailable(t *testing.T, err error) {
	t.Helper()
	nodetest.WantCode(t, err, codes.Unknown)
	if text := status.Convert(err).Message(); !strings.HasPrefix(text, crierrors.ErrRegistryUnavailable.Error()+": ") {
		t.Errorf("the error is %q", text)
	}
}

func TestARegistryThatCutsABlob(t *testing.T) {
	nodetest.BerthOnly(t, "its retries differ")
	n := nodetest.Shared(t)
	r, host := broken(t, n)
	push(t, r, "x:1", image(t, registrytest.Layer(registrytest.Random(time.Now().UnixNano(), "data", 4, 4<<20)...)))
	r.SetFaults(registrytest.Faults{CutAfter: 100000, Times: 2})
	if err := pull(t, n, host+"/x:1", nil); err != nil {
		t.Errorf("a pull that is cut twice: %v", err)
	}
	resumed := false
	for _, request := range r.Requests() {
		resumed = resumed || request.Range != "" && !strings.HasPrefix(request.Range, "bytes=0-")
	}
	if !resumed {
		t.Error("the pull started over")
	}
	push(t, r, "y:1", image(t, registrytest.Layer(registrytest.Random(time.Now().UnixNano(), "data", 4, 4<<20)...)))
	r.SetFaults(registrytest.Faults{CutAfter: 1000})
	wantUnavailable(t, pull(t, n, host+"/y:1", nil))
	wantNoImage(t, n, host+"/y:1")
}

func TestAWrongPassword(t *testing.T) {
	n := nodetest.Shared(t)
	const password = "s3cr3t-that-no-log-shows"
	for name, option := range map[string]registrytest.Option{
		"basic": registrytest.WithBasicAuth("user", "right"), "token": registrytest.WithTokenAuth("user", "right", "refresh"),
	} {
		t.Run(name, func(t *testing.T) {
			r, host := broken(t, n, option)
			push(t, r, "x:1", image(t, registrytest.WithFiles(map[string]string{"a": name})))
			for _, auth := range []*cri.AuthConfig{
				nil,
				{Username: "user", Password: password},
				{Auth: base64.StdEncoding.EncodeToString([]byte("user:" + password))},
				{IdentityToken: password},
				{RegistryToken: password},
			} {
				err := pull(t, n, host+"/x:1", auth)
				if err == nil {
					t.Fatal("it is pulled")
				}
				if strings.Contains(err.Error(), password) {
					t.Errorf("the error shows the password: %v", err)
				}
				if !nodetest.Containerd() {
					nodetest.WantCode(t, err, codes.Unauthenticated, codes.PermissionDenied)
				}
			}
			wantNoImage(t, n, host+"/x:1")
			if err := pull(t, n, host+"/x:1", &cri.AuthConfig{Username: "user", Password: "right"}); err != nil {
				t.Errorf("with the right one: %v", err)
			}
		})
	}
	log, err := os.ReadFile(n.DaemonLog)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{password, base64.StdEncoding.EncodeToString([]byte("user:" + password)), "right\""} {
		if strings.Contains(string(log), secret) {
			t.Errorf("the log shows %q", secret)
		}
	}
}

func TestABlobThatIsCorrupted(t *testing.T) {
	n := nodetest.Shared(t)
	r, host := broken(t, n)
	made := image(t, registrytest.WithFiles(map[string]string{"etc/x": strings.Repeat("something", 1000)}))
	layers, err := made.Layers()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	push(t, r, "x:1", made)
	r.SetFaults(registrytest.Faults{Corrupt: digest.String()})
	if err := pull(t, n, host+"/x:1", nil); err == nil {
		t.Error("it is pulled")
	}
	wantNoImage(t, n, host+"/x:1")
	r.SetFaults(registrytest.Faults{})
	if err := pull(t, n, host+"/x:1", nil); err != nil && !nodetest.Containerd() {
		t.Errorf("once it is whole: %v", err)
	}
}

func TestALayerThatReachesOutOfItsRoot(t *testing.T) {
	n := nodetest.Shared(t)
	outside := filepath.Join(os.TempDir(), fmt.Sprintf("berth-outside-%d", time.Now().UnixNano()))
	up := strings.Repeat("../", 20)
	for claim, entries := range map[string][]registrytest.Entry{
		"dots":            {registrytest.File(up+outside[1:], 0o644, "x")},
		"absolute":        {registrytest.File(outside, 0o644, "x")},
		"symbolic link":   {registrytest.Symlink("link", "/"), registrytest.File("link"+outside, 0o644, "x")},
		"relative link":   {registrytest.Symlink("link", up), registrytest.File("link"+outside, 0o644, "x")},
		"hard link":       {registrytest.Hardlink("passwd", up+"etc/passwd"), registrytest.File("passwd", 0o644, "x")},
		"link in parents": {registrytest.Symlink("a", up+"tmp"), registrytest.Dir("a/"+filepath.Base(outside), 0o755)},
	} {
		t.Run(claim, func(t *testing.T) {
			r, host := broken(t, n)
			push(t, r, "x:1", image(t, registrytest.Layer(entries...)))
			_ = pull(t, n, host+"/x:1", nil) // refused, or kept inside
			if exists(outside) {
				_ = os.RemoveAll(outside)
				t.Errorf("%s was made", outside)
			}
		})
	}
}

func TestAHugeManifest(t *testing.T) {
	nodetest.BerthOnly(t, "takes it")
	n := nodetest.Shared(t)
	r, host := broken(t, n)
	push(t, r, "x:1", image(t, registrytest.WithFiles(map[string]string{"a": "b"})))
	r.SetFaults(registrytest.Faults{ManifestSize: 100 << 20})
	before, err := node.PSS(n.PID())
	if err != nil {
		t.Fatal(err)
	}
	if err := pull(t, n, host+"/x:1", nil); err == nil {
		t.Error("it is accepted")
	}
	after, err := node.PSS(n.PID())
	if err != nil {
		t.Fatal(err)
	}
	if after > before+64<<20 {
		t.Errorf("the daemon grew from %d to %d MiB", before>>20, after>>20)
	}
}

func TestAnUnknownRuntimeHandler(t *testing.T) {
	n := nodetest.Shared(t)
	_, err := n.Runtime.RunPodSandbox(nodetest.Context(t),
		&cri.RunPodSandboxRequest{Config: nodetest.PodConfig(n), RuntimeHandler: "no-such-handler"})
	if err == nil || !strings.Contains(err.Error(), "no-such-handler") {
		t.Errorf("got %v, want an error that names it", err)
	}
	if !nodetest.Containerd() {
		nodetest.WantCode(t, err, codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition)
	}
	list, err := n.Runtime.ListPodSandbox(nodetest.Context(t), &cri.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range list.Items {
		if item.RuntimeHandler == "no-such-handler" {
			t.Errorf("a pod is left: %v", item)
		}
	}
}

func TestARequestThatLacksWhatItNeedsIsInvalid(t *testing.T) {
	nodetest.BerthOnly(t, "its codes differ")
	n := nodetest.Shared(t)
	ctx := nodetest.Context(t)
	p := nodetest.RunPod(t, n)
	for claim, call := range map[string]func() error{
		"a pod without configuration": func() error {
			_, err := n.Runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{})
			return err
		},
		"a pod without metadata": func() error {
			_, err := n.Runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: &cri.PodSandboxConfig{}})
			return err
		},
		"a container without configuration": func() error {
			_, err := n.Runtime.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: p.ID})
			return err
		},
		"a container without image": func() error {
			_, err := n.Runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
				PodSandboxId: p.ID, Config: &cri.ContainerConfig{Metadata: &cri.ContainerMetadata{Name: "x"}},
				SandboxConfig: p.Config,
			})
			return err
		},
		"a log path out of the log directory": func() error {
			c := p.ContainerConfig(func(c *cri.ContainerConfig) { c.LogPath = "../../../../etc/berth-test.log" })
			_, err := n.Runtime.CreateContainer(ctx,
				&cri.CreateContainerRequest{PodSandboxId: p.ID, Config: c, SandboxConfig: p.Config})
			return err
		},
		"an environment variable without a name": func() error {
			c := p.ContainerConfig(func(c *cri.ContainerConfig) { c.Envs = []*cri.KeyValue{{Key: "", Value: []byte("x")}} })
			_, err := n.Runtime.CreateContainer(ctx,
				&cri.CreateContainerRequest{PodSandboxId: p.ID, Config: c, SandboxConfig: p.Config})
			return err
		},
		"attach to nothing": func() error {
			c := p.Run()
			_, err := n.Runtime.Attach(ctx, &cri.AttachRequest{ContainerId: c.ID})
			return err
		},
		"a terminal with stderr": func() error {
			c := p.Run()
			_, err := n.Runtime.Exec(ctx, &cri.ExecRequest{ContainerId: c.ID, Cmd: []string{"true"}, Tty: true,
				Stdout: true, Stderr: true})
			return err
		},
	} {
		t.Run(claim, func(t *testing.T) { nodetest.WantCode(t, call(), codes.InvalidArgument) })
	}
}

func TestAHostPortThatIsTakenByAnotherPod(t *testing.T) {
	nodetest.BerthOnly(t, "portmap does not look")
	n := nodetest.Shared(t)
	port := freePort(t)
	mapping := func(c *cri.PodSandboxConfig) {
		c.PortMappings = []*cri.PortMapping{{ContainerPort: 80, HostPort: port}}
	}
	nodetest.RunPod(t, n, mapping)
	_, err := n.Runtime.RunPodSandbox(nodetest.Context(t),
		&cri.RunPodSandboxRequest{Config: nodetest.PodConfig(n, mapping)})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprint(port)) {
		t.Errorf("got %v, want an error that names port %d", err, port)
	}
}

func TestAFullDisk(t *testing.T) {
	nodetest.BerthOnly(t, "its codes differ")
	nodetest.Root(t)
	root := t.TempDir()
	if err := unix.Mount("none", root, "tmpfs", 0, "size=24m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	n := nodetest.Start(t, node.Options{Root: filepath.Join(root, "data")})
	p := nodetest.RunPod(t, n)
	running := p.Run()

	r, host := broken(t, n)
	push(t, r, "big:1", image(t, registrytest.Layer(registrytest.Random(1, "data", 4, 64<<20)...)))
	nodetest.WantCode(t, pull(t, n, host+"/big:1", nil), codes.ResourceExhausted)
	wantNoImage(t, n, host+"/big:1")

	running.Sh("cat /dev/zero >/fill 2>/dev/null; true")
	config := p.ContainerConfig()
	if made, err := n.Runtime.CreateContainer(nodetest.Context(t),
		&cri.CreateContainerRequest{PodSandboxId: p.ID, Config: config, SandboxConfig: p.Config}); err != nil {
		nodetest.WantCode(t, err, codes.ResourceExhausted)
	} else if _, err := n.Runtime.StartContainer(nodetest.Context(t),
		&cri.StartContainerRequest{ContainerId: made.ContainerId}); err != nil {
		nodetest.WantCode(t, err, codes.ResourceExhausted)
	}
	// The node still answers, and can be emptied.
	if _, err := running.Exec(60, "true"); err != nil {
		t.Errorf("exec on a full disk: %v", err)
	}
	if _, err := n.Runtime.ListContainers(nodetest.Context(t), &cri.ListContainersRequest{}); err != nil {
		t.Errorf("list on a full disk: %v", err)
	}
	running.Stop(0)
	if s := running.Status(); s.State != cri.ContainerState_CONTAINER_EXITED || s.ExitCode != 137 {
		t.Errorf("stopped on a full disk: %v %d", s.State, s.ExitCode)
	}
	running.Remove()
	nodetest.Eventually(t, 5*time.Second, "what the container took is free again", func() error {
		var stat unix.Statfs_t
		if err := unix.Statfs(root, &stat); err != nil {
			return err
		}
		if free := stat.Bavail * uint64(stat.Bsize); free < 8<<20 {
			return fmt.Errorf("%d bytes are free", free)
		}
		return nil
	})
	if got := p.Output("echo room again"); got != "room again\n" {
		t.Errorf("got %q", got)
	}
}

func TestASocketThatSpeaksNonsenseToTheNode(t *testing.T) {
	n := nodetest.Shared(t)
	for _, text := range []string{"GET / HTTP/1.1\r\n\r\n",
		"\x00\x01\x02", strings.Repeat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 100)} {
		conn, err := net.Dial("unix", n.Socket)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		_, _ = io.WriteString(conn, text)
		_, _ = io.ReadAll(conn)
		conn.Close()
	}
	if _, err := n.Runtime.Version(nodetest.Context(t), &cri.VersionRequest{}); err != nil {
		t.Error(err)
	}
}
