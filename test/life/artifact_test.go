package life

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// pushArtifact pushes an artifact to a node's registry under the tag 1, and returns its reference and its ID.
func pushArtifact(t *testing.T, n *node.Node, files ...registrytest.ArtifactFile) (ref, id string) {
	t.Helper()
	repo := strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-"))
	desc, err := n.Registry.PushArtifact(repo, "1", registrytest.Artifact{Type: "application/vnd.example.model",
		Files: files})
	if err != nil {
		t.Fatal(err)
	}
	return node.RegistryHost + "/" + repo + ":1", desc.Digest.String()
}

// artifactMounts mount an artifact as a kubelet does, whole and in part.
func artifactMounts(ref string, ids []*cri.IDMapping) nodetest.ContainerEdit {
	image := &cri.ImageSpec{Image: ref}
	return nodetest.Mounts(
		&cri.Mount{ContainerPath: "/model", Image: image, Readonly: true, UidMappings: ids, GidMappings: ids},
		&cri.Mount{ContainerPath: "/conf", Image: image, ImageSubPath: "conf", Readonly: true, UidMappings: ids,
			GidMappings: ids},
		&cri.Mount{ContainerPath: "/one.json", Image: image, ImageSubPath: "conf/a.json", Readonly: true, UidMappings: ids,
			GidMappings: ids},
	)
}

const (
	lookAtArtifact = `cat /model/run.sh /conf/a.json /one.json; stat -c '%n %u:%g %a' /model /model/run.sh /model/conf
	find /model /conf | sort; touch /model/x 2>&1; echo x 2>&1 >/conf/a.json; /model/run.sh 2>&1`
	artifactSeen = `echo run
{"a":1}
{"a":1}
/model 0:0 755
/model/run.sh 0:0 644
/model/conf 0:0 755
/conf
/conf/a.json
/conf/sub
/conf/sub/b
/model
/model/conf
/model/conf/a.json
/model/conf/sub
/model/conf/sub/b
/model/run.sh
touch: /model/x: Read-only file system
sh: can't create /conf/a.json: Read-only file system
sh: /model/run.sh: Permission denied`
)

// TestAnArtifactIsAVolume: each layer is a file of the volume, by its title.
func TestAnArtifactIsAVolume(t *testing.T) {
	n := nodetest.Shared(t)
	nodetest.BerthOnly(t, "containerd mounts no artifacts")
	ctx := nodetest.Context(t)
	ref, id := pushArtifact(t, n, registrytest.TitledFile("run.sh", "echo run\n"),
		registrytest.TitledFile("conf/a.json", "{\"a\":1}\n"), registrytest.TitledFile("conf/sub/b", "b"))
	pulled, err := n.Images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}})
	if err != nil || pulled.ImageRef != id {
		t.Fatalf("pulled %v, %v", pulled, err)
	}
	defer func() {
		if _, err := n.Images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: ref}}); err != nil {
			t.Error(err)
		}
	}()
	for name, ids := range map[string][]*cri.IDMapping{
		"in the node's user namespace": nil, "in one of the pod's own": userNamespace(200000, 65536).Uids,
	} {
		t.Run(name, func(t *testing.T) {
			var edits []nodetest.PodEdit
			if ids != nil {
				edits = append(edits, podNamespaces(&cri.NamespaceOption{UsernsOptions: userNamespace(200000, 65536)}))
			}
			p := nodetest.RunPod(t, n, edits...)
			c := p.Run(artifactMounts(ref, ids))
			if got := c.Sh(lookAtArtifact + "; true"); got != artifactSeen {
				t.Errorf("the container sees\n%s\nand should see\n%s", got, artifactSeen)
			}
			// By its ID, as a kubelet names what it has pulled.
			if got := p.Run(artifactMounts(id, ids)).Sh("cat /conf/sub/b"); got != "b" {
				t.Errorf("by its ID: %q", got)
			}
			_, err := p.TryCreate(nodetest.Mounts(&cri.Mount{ContainerPath: "/x", Image: &cri.ImageSpec{Image: ref},
				ImageSubPath: "none", Readonly: true}))
			nodetest.WantCode(t, err, codes.InvalidArgument)
			wantImageVolumeMountFailed(t, err)
			_, err = p.TryCreate(func(c *cri.ContainerConfig) { c.Image = &cri.ImageSpec{Image: ref} })
			nodetest.WantCode(t, err, codes.InvalidArgument)
			text := status.Convert(err).Message()
			if !strings.Contains(text, "an artifact of type application/vnd.example.model") ||
				!strings.Contains(text, "config.image") {
				t.Errorf("a container of an artifact: %s", text)
			}
		})
	}
}

// TestAnArtifactIsAmongTheImages: what the CRI and the command line tell of it, and its removal under a container.
func TestAnArtifactIsAmongTheImages(t *testing.T) {
	n := nodetest.Shared(t)
	nodetest.BerthOnly(t, "containerd pulls no artifacts")
	ctx := nodetest.Context(t)
	file := registrytest.TitledFile("a", strings.Repeat("a", 5000))
	blobs := func() []string {
		t.Helper()
		files, err := filepath.Glob(filepath.Join(n.Root, "images/layers/*/fs/blob"))
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	before := blobs()
	ref, id := pushArtifact(t, n, file)
	if code, _, complaints := typed(t, n, "pull", ref); code != 0 {
		t.Fatal(complaints)
	}
	image := &cri.ImageSpec{Image: ref}
	list, err := n.Images.ListImages(ctx, &cri.ListImagesRequest{Filter: &cri.ImageFilter{Image: image}})
	if err != nil || len(list.Images) != 1 {
		t.Fatalf("list %v, %v", list, err)
	}
	one, err := n.Images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: image, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, img := range []*cri.Image{list.Images[0], one.Image} {
		if img.Id != id || fmt.Sprint(img.RepoTags) != "["+ref+"]" || fmt.Sprint(img.RepoDigests) !=
			"["+strings.TrimSuffix(ref, ":1")+"@"+id+"]" || img.Size < 5000 || img.Size > 6000 || img.Uid != nil ||
			img.Username != "" || img.Pinned {
			t.Errorf("it is %v", img)
		}
	}
	for _, words := range []string{`"artifactType":"application/vnd.example.model"`, file.Descriptor().Digest.String()} {
		if !strings.Contains(one.Info["info"], words) {
			t.Errorf("its information lacks %s: %s", words, one.Info["info"])
		}
	}
	for _, format := range []string{"wide", "json"} {
		if code, out, complaints := typed(t, n, "images", "-o", format, ref); code != 0 || !strings.Contains(out, ref) ||
			!strings.Contains(out, "application/vnd.example.model") {
			t.Errorf("images: %s%s", out, complaints)
		}
	}
	if code, out, complaints := typed(t, n, "inspect", ref); code != 0 ||
		!strings.Contains(out, "application/vnd.example.model") {
		t.Errorf("inspect: %s%s", out, complaints)
	}
	if code, out, complaints := typed(t, n, "run", "--rm", ref); code == 0 ||
		!strings.Contains(complaints, "not an image but an artifact") {
		t.Errorf("run: exit code %d: %s%s", code, out, complaints)
	}
	c := nodetest.RunPod(t, n).Run(nodetest.Mounts(&cri.Mount{ContainerPath: "/a", Image: image, Readonly: true}))
	if now := blobs(); len(now) <= len(before) {
		t.Errorf("blobs %v, and before %v", now, before)
	}
	if _, err := n.Images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: image}); err != nil {
		t.Fatal(err)
	}
	if one, err = n.Images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: image}); err != nil || one.Image != nil {
		t.Errorf("it is there after its removal: %v, %v", one, err)
	}
	if got := c.Sh("wc -c </a/a"); strings.TrimSpace(got) != "5000" {
		t.Errorf("a container has lost the files of an artifact that was removed: %q", got)
	}
	c.Remove()
	nodetest.Eventually(t, 20*time.Second, "nothing is left of the artifact", func() error {
		if left := blobs(); !slices.Equal(left, before) {
			return fmt.Errorf("blobs %v, and before %v", left, before)
		}
		return nil
	})
}

// TestAnArtifactOutlivesTheDaemon: one that is mounted, and one of which berthd was killed while it pulled it.
func TestAnArtifactOutlivesTheDaemon(t *testing.T) {
	nodetest.BerthOnly(t, "containerd pulls no artifacts")
	n := nodetest.Start(t, node.Options{})
	ctx := nodetest.Context(t)
	ref, _ := pushArtifact(t, n, registrytest.TitledFile("conf/a.json", "a"))
	nodetest.Pull(t, n, ref)
	p := nodetest.RunPod(t, n)
	created, running := p.Create(artifactMounts(ref, nil)), p.Run(artifactMounts(ref, nil))

	big := registrytest.ArtifactFile{Title: "big", Body: bytes.Repeat([]byte("12345678"), 1<<18)}
	if _, err := n.Registry.PushArtifact("big", "1", registrytest.Artifact{Type: "a/b", Files: []registrytest.ArtifactFile{
		registrytest.TitledFile("small", "s"), big}}); err != nil {
		t.Fatal(err)
	}
	n.Registry.SetFaults(registrytest.Faults{BytesPerSecond: 256 << 10, Path: "/blobs/"})
	ended := make(chan error, 1)
	go func() {
		_, err := n.Images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: node.RegistryHost + "/big:1"}})
		ended <- err
	}()
	nodetest.Eventually(t, 20*time.Second, "the pull is under way", func() error {
		if n.Registry.Sent(big.Descriptor().Digest.String()) == 0 {
			return fmt.Errorf("nothing was sent")
		}
		return nil
	})
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("a pull has ended well without its daemon")
	}
	n.Registry.SetFaults(registrytest.Faults{})
	if err := n.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if got := running.Sh("cat /model/conf/a.json /conf/a.json /one.json"); got != "aaa" {
		t.Errorf("a running container: %q", got)
	}
	created.Start()
	if got := created.Sh("cat /model/conf/a.json /conf/a.json /one.json"); got != "aaa" {
		t.Errorf("a container that was created before: %q", got)
	}
	nodetest.Pull(t, n, node.RegistryHost+"/big:1")
	c := p.Run(nodetest.Mounts(&cri.Mount{ContainerPath: "/big", Image: &cri.ImageSpec{
		Image: node.RegistryHost + "/big:1"}, Readonly: true}))
	if got := c.Sh("cat /big/small; wc -c </big/big"); got != "s2097152" {
		t.Errorf("what was pulled again: %q", got)
	}
}

// TestAManifestMountsAnArtifact: volumes of the kind image, as in Kubernetes.
func TestAManifestMountsAnArtifact(t *testing.T) {
	n := nodetest.Shared(t)
	nodetest.BerthOnly(t, "containerd pulls no artifacts")
	ref, _ := pushArtifact(t, n, registrytest.TitledFile("conf/a", "from an artifact"))
	code, out, complaints := played(t, n, []string{"-q"}, strings.ReplaceAll(`apiVersion: v1
kind: Pod
metadata: {name: artifact}
spec:
  restartPolicy: Never
  containers:
  - {name: c, image: IMAGE, command: [cat, /model/conf/a, /part/a], volumeMounts: [
      {name: model, mountPath: /model}, {name: model, mountPath: /part, subPath: conf}]}
  volumes: [{name: model, image: {reference: "REF", pullPolicy: IfNotPresent}}]
`, "REF", ref))
	if code != 0 || !strings.Contains(out, "from an artifactfrom an artifact") {
		t.Errorf("exit code %d: %s%s", code, out, complaints)
	}
}
