package life

import (
	"slices"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

func TestAnImageIsKnownByTagDigestAndID(t *testing.T) {
	n := nodetest.Shared(t)
	r, host := broken(t, n) // sound, but a registry of this test's own
	push(t, r, "team/app:1", image(t, registrytest.WithFiles(map[string]string{"a": host}), registrytest.User("1002"),
		registrytest.Label("l", "v")))
	push(t, r, "team/app:2", image(t, registrytest.WithFiles(map[string]string{"a": host}), registrytest.User("1002"),
		registrytest.Label("l", "v")))
	ctx := nodetest.Context(t)
	status := func(ref string) *cri.Image {
		t.Helper()
		s, err := n.Images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})
		if err != nil {
			t.Fatalf("status of %s: %v", ref, err)
		}
		return s.Image
	}
	one, two := host+"/team/app:1", host+"/team/app:2"
	pulled, err := n.Images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: one}})
	if err != nil {
		t.Fatal(err)
	}
	if err := pull(t, n, two, nil); err != nil {
		t.Fatal(err)
	}
	img := status(one)
	if img == nil {
		t.Fatal("what was pulled is not there")
	}
	if !slices.Equal(img.RepoTags, []string{one, two}) || len(img.RepoDigests) != 1 ||
		!strings.HasPrefix(img.RepoDigests[0], host+"/team/app@sha256:") {
		t.Errorf("one image under two tags: %v, %v", img.RepoTags, img.RepoDigests)
	}
	if !strings.HasPrefix(img.Id, "sha256:") || img.Size == 0 || img.Uid.GetValue() != 1002 {
		t.Errorf("image: %v", img)
	}
	for _, ref := range []string{two, img.Id, strings.TrimPrefix(img.Id, "sha256:"), img.RepoDigests[0], pulled.ImageRef} {
		if got := status(ref); got == nil || got.Id != img.Id {
			t.Errorf("%s is %v", ref, got)
		}
	}
	list, err := n.Images.ListImages(ctx,
		&cri.ListImagesRequest{Filter: &cri.ImageFilter{Image: &cri.ImageSpec{Image: one}}})
	if err != nil || len(list.Images) != 1 || list.Images[0].Id != img.Id {
		t.Errorf("list by tag: %v, %v", list, err)
	}
	list, err = n.Images.ListImages(ctx,
		&cri.ListImagesRequest{Filter: &cri.ImageFilter{Image: &cri.ImageSpec{Image: host + "/none:1"}}})
	if err != nil || len(list.Images) != 0 {
		t.Errorf("list of what is not there: %v, %v", list, err)
	}
	for range 3 {
		if _, err := n.Images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: img.Id}}); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	for _, ref := range []string{one, two, img.Id} {
		if got := status(ref); got != nil {
			t.Errorf("after its removal %s is %v", ref, got)
		}
	}
}

func TestTenPullsOfOneImageShareTheWork(t *testing.T) {
	nodetest.BerthOnly(t, "its pulls share less")
	n := nodetest.Shared(t)
	r, host := broken(t, n)
	made := image(t, registrytest.Layer(registrytest.Random(7, "data-"+host, 8, 8<<20)...))
	push(t, r, "x:1", made)
	errs := make(chan error)
	for range 10 {
		go func() { errs <- pull(t, n, host+"/x:1", nil) }()
	}
	for range 10 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	layers, err := made.Layers()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	size, err := layers[0].Size()
	if err != nil {
		t.Fatal(err)
	}
	if sent := r.Sent(digest.String()); sent != size {
		t.Errorf("%d bytes of a layer of %d were sent", sent, size)
	}
}

func TestAnImageInUseKeepsItsContainers(t *testing.T) {
	n := nodetest.Shared(t)
	r, host := broken(t, n)
	made := image(t, registrytest.WithBusybox(), registrytest.WithFiles(map[string]string{"mark": host}))
	push(t, r, "x:1", made)
	p := nodetest.RunPod(t, n)
	c := p.Run(func(c *cri.ContainerConfig) {
		c.Image.Image, c.Command = host+"/x:1", []string{"/bin/busybox", "sleep", "3600"}
	})
	if _, err := n.Images.RemoveImage(nodetest.Context(t),
		&cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: host + "/x:1"}}); err != nil {
		t.Fatal(err)
	}
	if got := c.Sh("cat /mark"); got != host {
		t.Errorf("got %q", got)
	}
}

// TestAnImageWithAnEmptyEntrypointRunsItsCommand: ENTRYPOINT [""] is how a Dockerfile undoes that of its base. Docker
// and containerd (since its issue 7229) take it for none.
func TestAnImageWithAnEmptyEntrypointRunsItsCommand(t *testing.T) {
	n := nodetest.Shared(t)
	r, host := broken(t, n)
	push(t, r, "none:1", image(t, registrytest.WithBusybox(), registrytest.Entrypoint(""), registrytest.Cmd("echo", "it")))
	ref := host + "/none:1"
	if err := pull(t, n, ref, nil); err != nil {
		t.Fatal(err)
	}
	p := nodetest.RunPod(t, n)
	for want, args := range map[string][]string{"it\n": nil, "that\n": {"echo", "that"}} {
		c := p.Run(func(c *cri.ContainerConfig) { c.Image.Image, c.Command, c.Args = ref, nil, args })
		if s := c.WaitExit(); s.ExitCode != 0 || c.Stdout() != want {
			t.Errorf("ended with %d: %q", s.ExitCode, c.Log())
		}
	}
}

func TestAnImageHasOneIDInEveryCall(t *testing.T) {
	n := nodetest.Shared(t)
	ctx := nodetest.Context(t)
	for name, ref := range map[string]string{"tag": node.Busybox, "plain": node.StopSignal} {
		t.Run(name, func(t *testing.T) {
			pulled, err := n.Images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}})
			if err != nil {
				t.Fatal(err)
			}
			id := func(what, ref string) string {
				t.Helper()
				got, err := n.Images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})
				if err != nil || got.Image == nil {
					t.Fatalf("%s: there is no image %q: %v", what, ref, err)
				}
				return got.Image.Id
			}
			want := id("the tag", ref)
			c := nodetest.RunPod(t, n).Run(func(c *cri.ContainerConfig) { c.Image.Image = ref })
			listed, err := n.Runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{Id: c.ID}})
			if err != nil || len(listed.Containers) != 1 {
				t.Fatal(listed, err)
			}
			status, item := c.Status(), listed.Containers[0]
			if status.ImageId != want || item.ImageId != want {
				t.Errorf("image_id is %s in the status and %s in the list, the image's is %s", status.ImageId, item.ImageId, want)
			}
			// Kubelets before 1.30 look there for the images that are in use.
			if item.ImageRef != want {
				t.Errorf("image_ref is %s in the list, the image's ID is %s", item.ImageRef, want)
			}
			for what, ref := range map[string]string{
				"PullImage's image_ref": pulled.ImageRef, "the container's image_ref": status.ImageRef,
				"its image_id": status.ImageId,
				"its image":    status.Image.Image,
			} {
				if got := id(what, ref); got != want {
					t.Errorf("%s, %s, is of the image %s and not %s", what, ref, got, want)
				}
			}
			images, err := n.Images.ListImages(ctx,
				&cri.ListImagesRequest{Filter: &cri.ImageFilter{Image: &cri.ImageSpec{Image: status.ImageId}}})
			if err != nil || len(images.Images) != 1 || images.Images[0].Id != want {
				t.Errorf("the list by image_id: %v, %v", images.GetImages(), err)
			}
		})
	}
}

// TestAContainerByAnImagesIDHasItsTag: kubelets create containers by the ID of an image, and people know it by a
// name. Images that it mounts are told by their IDs.
func TestAContainerByAnImagesIDHasItsTag(t *testing.T) {
	n := nodetest.Shared(t)
	got, err := n.Images.ImageStatus(nodetest.Context(t),
		&cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: node.Busybox}})
	if err != nil || got.Image == nil || len(got.Image.RepoTags) == 0 {
		t.Fatal(got, err)
	}
	id, tag := got.Image.Id, got.Image.RepoTags[0]
	p := nodetest.RunPod(t, n)
	for name, c := range map[string]struct {
		spec *cri.ImageSpec
		want string
	}{
		"its ID":                      {&cri.ImageSpec{Image: id}, tag},
		"its ID without algorithm":    {&cri.ImageSpec{Image: strings.TrimPrefix(id, "sha256:")}, tag},
		"a name":                      {&cri.ImageSpec{Image: node.Busybox}, node.Busybox},
		"its ID and what a user said": {&cri.ImageSpec{Image: id, UserSpecifiedImage: "busybox"}, "busybox"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.want != tag {
				nodetest.BerthOnly(t, "containerd tells the first tag in any case")
			}
			made := p.Create(func(cfg *cri.ContainerConfig) { cfg.Image = c.spec })
			if got := made.Status().Image.Image; got != c.want {
				t.Errorf("the image is %q in the status, want %q", got, c.want)
			}
		})
	}
	nodetest.BerthOnly(t, "containerd tells the image of a mount as it was sent")
	made := p.Create(nodetest.Mounts(&cri.Mount{ContainerPath: "/image", Image: &cri.ImageSpec{Image: node.Busybox},
		Readonly: true}))
	if mounts := made.Status().Mounts; len(mounts) != 1 || mounts[0].Image.Image != id ||
		mounts[0].Image.UserSpecifiedImage != node.Busybox {
		t.Errorf("its mounts: %v, want the image %s that was asked for as %s", mounts, id, node.Busybox)
	}
}
