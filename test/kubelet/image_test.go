package kubelet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/registrytest"
	"berth/test/node"
)

// push makes an image of a name of its own, of this many random bytes besides busybox.
func push(t *testing.T, n *node.Node, name string, size int64) string {
	t.Helper()
	image, err := registrytest.Image(registrytest.WithBusybox(),
		registrytest.Layer(registrytest.Random(serial.Add(1), "data", 1, size)...), registrytest.Label("name", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Registry.Push(name+":1", image); err != nil {
		t.Fatal(err)
	}
	return node.RegistryHost + "/" + name + ":1"
}

// pushArtifact makes an artifact of a name of its own, with a file of this many bytes.
func pushArtifact(t *testing.T, n *node.Node, name string, size int) string {
	t.Helper()
	_, err := n.Registry.PushArtifact(name, "1", registrytest.Artifact{Type: "application/vnd.example.model",
		Files: []registrytest.ArtifactFile{registrytest.TitledFile("dir/of", name),
			registrytest.TitledFile("weights", strings.Repeat(name, size/len(name)))}})
	if err != nil {
		t.Fatal(err)
	}
	return node.RegistryHost + "/" + name + ":1"
}

// fresh is a name that no test has used.
func fresh(name string) string { return fmt.Sprintf("%s-%d", name, serial.Add(1)) }

// manifests is how often the registry was asked for the manifest of a name.
func manifests(n *node.Node, name string) int {
	count := 0
	for _, r := range n.Registry.Requests() {
		if strings.Contains(r.Path, "/"+name+"/manifests/") {
			count++
		}
	}
	return count
}

func TestImagePullPolicies(t *testing.T) {
	t.Parallel()
	k := shared(t)
	with := func(name string, policy v1.PullPolicy) *v1.Pod {
		c := sh("main", sleep)
		c.Image, c.ImagePullPolicy = push(t, k.node, name, 1000), policy
		return manifest(name, c)
	}
	for _, test := range []struct {
		policy v1.PullPolicy
		again  bool
	}{{v1.PullIfNotPresent, false}, {v1.PullAlways, true}} {
		t.Run(string(test.policy), func(t *testing.T) {
			name := fresh("policy-" + strings.ToLower(string(test.policy)))
			first := with(name, test.policy)
			k.run(t, first).running()
			asked := manifests(k.node, name)
			if asked == 0 {
				t.Fatal("the image was not pulled")
			}
			second := manifest(name, first.Spec.Containers[0])
			k.run(t, second).running()
			if again := manifests(k.node, name); (again > asked) != test.again {
				t.Errorf("for a second pod the registry was asked %d times more", again-asked)
			}
		})
	}
	waiting := func(t *testing.T, p *pod, reasons ...string) {
		t.Helper()
		p.until(30*time.Second, fmt.Sprintf("it waits: %v", reasons), func(now *v1.Pod) error {
			s := status(now, "main")
			for _, reason := range reasons {
				if s.State.Waiting != nil && s.State.Waiting.Reason == reason {
					return nil
				}
			}
			return fmt.Errorf("%+v", s.State.Waiting)
		})
	}
	t.Run("Never", func(t *testing.T) {
		name := fresh("policy-never")
		p := k.run(t, with(name, v1.PullNever))
		waiting(t, p, "ErrImageNeverPull")
		if n := manifests(k.node, name); n != 0 {
			t.Errorf("the registry was asked %d times", n)
		}
	})
	t.Run("of an image that appears later", func(t *testing.T) {
		c, name := sh("main", sleep), fresh("policy-late")
		c.Image, c.ImagePullPolicy = node.RegistryHost+"/"+name+":1", v1.PullIfNotPresent
		p := k.run(t, manifest("late", c))
		waiting(t, p, "ErrImagePull")
		waiting(t, p, "ImagePullBackOff")
		push(t, k.node, name, 1000)
		p.running()
	})
	t.Run("of a name that is none", func(t *testing.T) {
		c := sh("main", sleep)
		c.Image = node.RegistryHost + "/UPPER:1"
		waiting(t, k.run(t, manifest("badname", c)), "InvalidImageName")
	})
}

// TestAKubeletShowsThatAnImageIsNotVerified: as the reason of the container, with the words of the image verifier. The
// pod runs once the verifier accepts the image. Seen to fail with another gRPC code than Unknown: the reason was
// ErrImagePull.
func TestAKubeletShowsThatAnImageIsNotVerified(t *testing.T) {
	t.Parallel()
	verifier := filepath.Join(t.TempDir(), "signed")
	write := func(script string) {
		t.Helper()
		if err := os.WriteFile(verifier, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("echo nobody has signed it; exit 1")
	k := own(t, node.Options{
		Tables: fmt.Sprintf("[image_verifier]\nbin_dir = %q\n", filepath.Dir(verifier)),
	}, options{})
	c := sh("main", sleep)
	c.Image = push(t, k.node, fresh("unverified"), 1000)
	p := k.run(t, manifest("unverified", c))
	p.until(30*time.Second, "the image is not verified", func(now *v1.Pod) error {
		w := status(now, "main").State.Waiting
		if w == nil || w.Reason != crierrors.ErrSignatureValidationFailed.Error() ||
			!strings.Contains(w.Message, `"signed"`) || !strings.Contains(w.Message, "nobody has signed it") {
			return fmt.Errorf("%+v", w)
		}
		return nil
	})
	write("exit 0")
	p.running()
}

// TestImageGarbageCollection fills the small file system of a node with images and artifacts. A kubelet that finds too
// little left there, and it looks every 10 s, removes those that are not in use and not pinned, and no pod has to go.
// An artifact is in use where a container has it as a volume.
func TestImageGarbageCollection(t *testing.T) {
	t.Parallel()
	small := t.TempDir()
	if err := syscall.Mount("small", small, "tmpfs", 0, "size=100m,mode=711"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(small, 0); err != nil {
			t.Error(err)
		}
	})
	k := own(t, node.Options{
		Root: filepath.Join(small, "root"), Tables: "[image]\npinned = [\"registry.test/gc-pinned:1\"]\n",
	}, options{})
	used := sh("main", sleep)
	used.Image = push(t, k.node, "gc-used", 5<<20)
	mounted("model", "/model")(&used)
	spec := manifest("gc", used)
	spec.Spec.Volumes = append(spec.Spec.Volumes, v1.Volume{Name: "model", VolumeSource: v1.VolumeSource{
		Image: &v1.ImageVolumeSource{Reference: pushArtifact(t, k.node, "gc-model", 1<<20)}}})
	p := k.run(t, spec)
	before := p.running()
	for _, name := range []string{"gc-old", "gc-pinned", "gc-older", "gc-artifact"} {
		ref := node.RegistryHost + "/" + name + ":1"
		if name == "gc-artifact" {
			pushArtifact(t, k.node, name, 20<<20)
		} else {
			push(t, k.node, name, 20<<20)
		}
		ctx, cancel := context.WithTimeout(t.Context(), node.Patience(30*time.Second))
		_, err := k.node.Images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
	}
	// The kubelet that all were pulled under was content with what was left; this one is not.
	if err := k.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := k.configure(map[string]any{
		"evictionHard":                     map[string]string{"imagefs.available": "40%"},
		"evictionPressureTransitionPeriod": "1s", "imageMinimumGCAge": "1s",
	}); err != nil {
		t.Fatal(err)
	}
	if err := k.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "unused images are removed", func() error {
		return images(k.node, "gc-old", "gc-older", "gc-artifact")
	})
	for _, name := range []string{"gc-used", "gc-pinned", "gc-model"} {
		if err := images(k.node, name); err == nil {
			t.Errorf("%s was removed", name)
		}
	}
	time.Sleep(11 * time.Second) // the kubelet looks again, and has no reason to evict a pod
	if status(p.running(), "main").ContainerID != status(before, "main").ContainerID {
		t.Error("the container was started again")
	}
}

// images is an error that names those of these images that the node has.
func images(n *node.Node, names ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), node.Patience(10*time.Second))
	defer cancel()
	list, err := n.Images.ListImages(ctx, &cri.ListImagesRequest{})
	if err != nil {
		return err
	}
	var there []string
	for _, image := range list.Images {
		for _, name := range names {
			for _, tag := range image.RepoTags {
				if strings.Contains(tag, "/"+name+":") {
					there = append(there, tag)
				}
			}
		}
	}
	if len(there) > 0 {
		return fmt.Errorf("the node has %v", there)
	}
	return nil
}
