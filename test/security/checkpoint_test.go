package security

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/checkpoint"
	rt "berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// Attacks by a container that is written down, and by the checkpoint that is made of it.

func needCRIU(t *testing.T) {
	t.Helper()
	if criu() == "" {
		t.Skip("there is no criu that works on this kernel: packaging/criu.sh gets one")
	}
}

// written is the archive of a checkpoint of a container.
func written(t *testing.T, c *nodetest.Container) (archive string, err error) {
	t.Helper()
	archive = filepath.Join(t.TempDir(), "checkpoint.tar")
	_, err = c.Pod.Node.Runtime.CheckpointContainer(nodetest.Context(t), &cri.CheckpointContainerRequest{
		ContainerId: c.ID, Location: archive, Timeout: 60,
	})
	return archive, err
}

func mustWritten(t *testing.T, c *nodetest.Container) string {
	t.Helper()
	archive, err := written(t, c)
	if err != nil {
		t.Fatal(err)
	}
	return archive
}

func fromArchive(archive string) nodetest.ContainerEdit {
	return func(c *cri.ContainerConfig) { c.Image.Image, c.Command, c.Args = archive, nil, nil }
}

// file is one of an archive.
type file struct {
	header *tar.Header
	data   []byte
}

func readArchive(t *testing.T, archive string) (files []file) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		var data []byte
		if err == nil {
			data, err = io.ReadAll(r)
		}
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file{h, data})
	}
}

// forged is an archive with other files in place of some.
func forged(t *testing.T, archive string, change map[string]func(*file)) string {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	left := maps.Clone(change)
	write := func(f file) {
		f.header.Size = int64(len(f.data))
		if err := errors.Join(w.WriteHeader(f.header), second(w.Write(f.data))); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range readArchive(t, archive) {
		if edit := left[f.header.Name]; edit != nil {
			edit(&f)
			delete(left, f.header.Name)
		}
		write(f)
	}
	for name, edit := range left {
		f := file{header: &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600}}
		edit(&f)
		write(f)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "forged.tar")
	writeFile(t, name, out.Bytes(), 0o600)
	return name
}

func second(_ int, err error) error { return err }

// inJSON changes a file of an archive that is one of JSON.
func inJSON[T any](t *testing.T, change func(*T)) func(*file) {
	return func(f *file) {
		var v T
		err := json.Unmarshal(f.data, &v)
		if err == nil {
			change(&v)
			f.data, err = json.Marshal(v)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// checkpointImage is an image that is made of an archive.
func checkpointImage(t *testing.T, n *node.Node, archive string) string {
	t.Helper()
	data, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	return publish(t, n, rt.RawLayer(data), rt.Annotation("org.criu.checkpoint.container.name", "x"))
}

// CVE-2026-119101 (runc, with CVE-2026-119614 in CRIU and CVE-2026-115520 in crun): CRIU is told which mounts
// of a container are the host's by a text of keys and paths. The runtime took the keys from where the links
// of the image lead the mount points, so that a container whose links have the text's own punctuation made one key look
// like another with a path of its choice. When it was restored, CRIU mounted that directory of the host.
//
// The volume "a" is found under /x/y. Its link is exchanged before the checkpoint, so that its key reads
// as one for /x/y that stands for a name with "]:" in it; the key of "b" then reads as one for that name with a path
// in "a", where the container has put a link. The other part needs no such names: the directories above two volumes
// are exchanged, and a volume that cannot be written to takes the place of one that can.
//
// Both were seen to succeed on the build whose criu.go did not compare mounts with their keys.
func TestCVE_2026_119101_ARestoreMountsTheHost(t *testing.T) {
	needCRIU(t)
	n := nodetest.Shared(t)
	attack := func(t *testing.T, prepare string, look func(c *nodetest.Container), edits ...nodetest.ContainerEdit) {
		t.Helper()
		c := nodetest.RunPod(t, n).Run(edits...)
		c.Sh(prepare)
		archive, err := written(t, c)
		if err == nil {
			var restored *nodetest.Container
			if restored, err = nodetest.RunPod(t, n).TryCreate(append(edits, fromArchive(archive))...); err == nil {
				if err = restored.TryStart(); err == nil {
					look(restored)
				}
			}
		}
		if err != nil {
			nodetest.WantCode(t, err, codes.FailedPrecondition)
			t.Logf("refused: %v", err)
		}
	}
	t.Run("names", func(t *testing.T) {
		bait := newBait(t)
		name := filepath.Base(bait.path) // CRIU does not follow the last part of the path
		a, b := openDir(t), filepath.Join(openDir(t, name), name)
		above := filepath.Dir(b)
		ref := hostile(t, n, rt.Layer(rt.Symlink("m1", "/x/y"), rt.Symlink("m2", "/k]:/x/y]:/k]:"+a+"/q")))
		attack(t, fmt.Sprintf("rm /m1; ln -s '/x/y]:/k' /m1; mkdir -p '/x/y/q]:%s'; ln -s %s '/x/y/q]:%s'",
			filepath.Dir(above), filepath.Dir(bait.path), above),
			func(c *nodetest.Container) {
				if r, err := c.Exec(60, "cat", "/x/y/secret"); err == nil {
					bait.unread(t, "the restored container", string(r.Stdout))
				}
				confined(t, c, a, b)
			}, withImage(ref), volume(a, "/m1"), volume(b, "/m2"))
		bait.check(t)
	})
	t.Run("volumes", func(t *testing.T) {
		mine, kept := openDir(t), newBait(t)
		attack(t, "mv /p /t && mv /q /p && mv /t /q", func(c *nodetest.Container) {
			_, _ = c.Exec(60, "sh", "-c", "touch /q/x/new /p/x/new")
		},
			volume(mine, "/p/x"), nodetest.Mounts(&cri.Mount{HostPath: kept.path, ContainerPath: "/q/x", Readonly: true}))
		kept.check(t)
	})
}

// CVE-2024-8676 (CRI-O): a restored container got the mounts that its archive names, in place of those that the request
// gives, which are what an admission looks at. CVE-2026-53492 (containerd) is the same with devices, by annotations
// of CDI; CVE-2026-95837 (containerd), CVE-2026-92574 (CRI-O) and CVE-2026-94603 (podman) with capabilities, users,
// and filters of system calls.
//
// Seen to fail with the comparison of a restored specification taken out of Fit in pod/checkpoints/restore.go.
func TestCVE_2024_8676_ACheckpointBringsRights(t *testing.T) {
	needCRIU(t)
	n := nodetest.Shared(t)
	b := newBait(t)
	other := openDir(t)
	restore := func(claim, archive string, edits ...nodetest.ContainerEdit) {
		t.Helper()
		startOrRefuse(t, nodetest.RunPod(t, n), func(c *nodetest.Container) {
			if r, err := c.Exec(60, "sh", "-c", "cat /host/secret"); err == nil {
				b.unread(t, claim, string(r.Stdout))
			}
			if r, err := c.Exec(60, "touch", "/kept/touched"); err == nil && r.ExitCode == 0 {
				t.Errorf("%s: it writes to a volume that the request gives read-only", claim)
			}
			confined(t, c, other)
			sets := capabilitySets(t, c.Sh("cat /proc/1/status"))
			if sets["CapEff"]&(1<<21) != 0 { // CAP_SYS_ADMIN
				t.Errorf("%s: it has the capabilities %x", claim, sets["CapEff"])
			}
			if mode := c.Sh("grep ^Seccomp: /proc/1/status | cut -f2"); claim == "without a filter" && mode != "2" {
				t.Errorf("%s: its seccomp mode is %s", claim, mode)
			}
			if id := c.Sh("id -u"); claim == "as root" && id == "0" {
				t.Errorf("%s: it runs as root", claim)
			}
		}, append([]nodetest.ContainerEdit{fromArchive(archive)}, edits...)...)
	}
	filter := nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
		s.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
	})
	unconfined := nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
		s.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
	})
	// Containers that have more than the request for the restored one gives.
	for claim, edits := range map[string][2]nodetest.ContainerEdit{
		"with a mount":        {volume(b.path, "/host"), nil},
		"with a capability":   {capabilities("SYS_ADMIN"), nil},
		"without a filter":    {unconfined, filter},
		"as root":             {nil, as(1000, 1000)},
		"with another volume": {volume(b.path, "/host"), volume(other, "/host")},
		"with a writable volume": {volume(other, "/kept"),
			nodetest.Mounts(&cri.Mount{HostPath: other, ContainerPath: "/kept", Readonly: true})},
	} {
		var had, gets []nodetest.ContainerEdit
		if edits[0] != nil {
			had = append(had, edits[0])
		}
		if edits[1] != nil {
			gets = append(gets, edits[1])
		}
		restore(claim, mustWritten(t, nodetest.RunPod(t, n).Run(had...)), gets...)
	}
	// Archives whose description is forged. Who can write them is root on the node already; they must not bring
	// more all the same.
	sound := mustWritten(t, nodetest.RunPod(t, n).Run())
	for claim, change := range map[string]func(*specs.Spec){
		"a forged mount": func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/host", Source: b.path, Type: "bind",
				Options: []string{"rbind"}})
		},
		"a forged device": func(s *specs.Spec) {
			s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: "/dev/kmsg", Type: "c", Major: 1, Minor: 11})
		},
		"a forged capability": func(s *specs.Spec) { s.Process.Capabilities.Effective = []string{"CAP_SYS_ADMIN"} },
		"forged annotations": func(s *specs.Spec) {
			s.Annotations = map[string]string{"cdi.k8s.io/x": "vendor.test/device=all"}
		},
		"a forged hook": func(s *specs.Spec) {
			s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{
				{Path: "/bin/touch", Args: []string{"touch", b.path + "/touched"}}}}
		},
		"a forged root": func(s *specs.Spec) { s.Root.Path = "/" },
	} {
		restore(claim, forged(t, sound, map[string]func(*file){checkpoint.SpecFile: inJSON(t, change)}))
		b.check(t)
	}
	// From an image anybody could have written it: on a node that has not been told to restore images it is none.
	_, err := nodetest.RunPod(t, n).TryCreate(fromArchive(checkpointImage(t, n, sound)))
	nodetest.WantCode(t, err, codes.FailedPrecondition)
	// Nor from a file that others than root can write.
	for claim, change := range map[string]func() error{
		"of another user":    func() error { return os.Chown(sound, 1000, 0) },
		"that all may write": func() error { return errors.Join(os.Chown(sound, 0, 0), os.Chmod(sound, 0o666)) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		_, err := nodetest.RunPod(t, n).TryCreate(fromArchive(sound))
		if nodetest.WantCode(t, err, codes.InvalidArgument); err == nil {
			t.Errorf("an archive %s is restored", claim)
		}
	}
}

// CVE-2026-53489 (containerd): the log in a checkpoint was a link, which was followed on the host when the log was put
// into its place, so that `kubectl logs` showed any file of the host.
//
// The node of this test restores images, so that the checkpoint is whatever its author has made. Seen to fail
// with plain taken out of checkpoint.ReadDir, and with links followed in copyFile of pod/checkpoints/restore.go.
func TestCVE_2026_53489_TheLogOfACheckpointIsALink(t *testing.T) {
	needCRIU(t)
	n := nodetest.Start(t, node.Options{Tables: fmt.Sprintf("[checkpoint]\ncriu = %q\nrestore_images = true\n", criu())})
	b := newBait(t)
	sound := mustWritten(t, nodetest.RunPod(t, n).Run())
	secret := filepath.Join(b.path, "secret")
	for claim, f := range map[string]file{
		"a link":                 {header: &tar.Header{Typeflag: tar.TypeSymlink, Linkname: secret}},
		"a climbing link":        {header: &tar.Header{Typeflag: tar.TypeSymlink, Linkname: up + secret}},
		"a hard link":            {header: &tar.Header{Typeflag: tar.TypeLink, Linkname: secret}},
		"a climbing hard link":   {header: &tar.Header{Typeflag: tar.TypeLink, Linkname: up + secret}},
		"a pipe":                 {header: &tar.Header{Typeflag: tar.TypeFifo}},
		"a device with no end":   {header: &tar.Header{Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 5}},
		"a link to a magic link": {header: &tar.Header{Typeflag: tar.TypeSymlink, Linkname: "/proc/self/root" + secret}},
	} {
		for _, name := range []string{checkpoint.LogFile, checkpoint.DiffFile, checkpoint.DeletedFile, checkpoint.SpecFile,
			checkpoint.ConfigFile,
			checkpoint.ImagesDir + "/descriptors.json", checkpoint.ImagesDir + "/inventory.img"} {
			archive := forged(t, sound, map[string]func(*file){name: func(old *file) {
				f.header.Name, f.header.Mode = name, 0o600
				*old = f
			}})
			ref := checkpointImage(t, n, archive)
			if err := pull(t, n, ref, nil); err != nil {
				nodetest.WantCode(t, err, codes.InvalidArgument)
				ref = archive // is refused as an image already
			}
			for way, ref := range map[string]string{"archive": archive, "image": ref} {
				startOrRefuse(t, nodetest.RunPod(t, n), func(c *nodetest.Container) {
					t.Errorf("%s, %s in place of %s: it is restored", way, claim, name)
					b.unread(t, "the log", c.Log())
				}, fromArchive(ref))
				b.check(t)
			}
		}
	}
}

// CVE-2026-50195 (containerd): a checkpoint named the image of its container, which was pulled by a digest
// of the checkpoint's choice and tagged with a name of its choice: other pods of the node ran the attacker's image
// under that name.
//
// Berth neither pulls nor tags for a restore. Seen to fail with the image that config.dump names tagged in checkpointOf
// of pod/checkpoints/restore.go.
func TestCVE_2026_50195_ACheckpointTagsAnImage(t *testing.T) {
	needCRIU(t)
	n := nodetest.Shared(t)
	const victim = "victim.test/nginx:latest"
	evil := hostile(t, n)
	nodetest.Pull(t, n, evil)
	status := func(ref string) *cri.Image {
		t.Helper()
		r, err := n.Images.ImageStatus(nodetest.Context(t), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})
		if err != nil {
			t.Fatal(err)
		}
		return r.Image
	}
	attacker := status(evil)
	sound := mustWritten(t, nodetest.RunPod(t, n).Run(withImage(evil)))
	before := imagesOf(t, n)
	for claim, change := range map[string]func(*checkpoint.Config){
		"of the attacker's digest": func(c *checkpoint.Config) {
			c.RootfsImageName, c.RootfsImageRef = victim, attacker.RepoDigests[0]
		},
		"of the attacker's ID": func(c *checkpoint.Config) {
			c.RootfsImageName, c.RootfsImage, c.RootfsImageRef = victim, victim, attacker.Id
		},
		"that only names the victim": func(c *checkpoint.Config) {
			c.RootfsImageName, c.RootfsImage, c.RootfsImageRef = victim, victim, victim
		},
		"with a digest to the name": func(c *checkpoint.Config) {
			_, digest, _ := strings.Cut(attacker.RepoDigests[0], "@")
			c.RootfsImageName, c.RootfsImageRef = victim+"@"+digest, victim
		},
	} {
		archive := forged(t, sound, map[string]func(*file){checkpoint.ConfigFile: inJSON(t, change)})
		if c, err := nodetest.RunPod(t, n).TryCreate(fromArchive(archive)); err == nil {
			_ = c.TryStart()
		}
		if got := status(victim); got != nil {
			t.Errorf("a checkpoint %s has made %s the image %s", claim, victim, got.Id)
		}
		if now := imagesOf(t, n); !slices.Equal(now, before) {
			t.Errorf("a checkpoint %s changed the images from %v to %v", claim, before, now)
		}
	}
}

// imagesOf are the tags and digests that a node has, with the IDs that they stand for.
func imagesOf(t *testing.T, n *node.Node) (all []string) {
	t.Helper()
	r, err := n.Images.ListImages(nodetest.Context(t), &cri.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range r.Images {
		for _, name := range slices.Concat(image.RepoTags, image.RepoDigests) {
			all = append(all, name+" is "+image.Id)
		}
	}
	slices.Sort(all)
	return all
}

// CVE-2018-15664 (Docker): files were copied out of a running container by a path that had been looked up inside
// it before; a process of the container exchanged a directory for a link meanwhile. CVE-2019-1002101, CVE-2019-10152,
// CVE-2019-18466, CVE-2026-41568 and CVE-2026-42306 are other holes of such copies.
//
// berthd reads the files of a running container for a checkpoint, and to count the space that they take. `berth cp`
// copies files by itself: TestNoCopyLeavesTheRoot in internal/cli/filecopy. Seen to fail with the container not frozen,
// and paths in place of descriptors, in rootfs.WriteDiff.
func TestCVE_2018_15664_FilesAreCopiedWhileTheContainerExchangesThem(t *testing.T) {
	needCRIU(t)
	n := nodetest.Shared(t)
	b := newBait(t)
	writeFile(t, filepath.Join(b.path, "large"), make([]byte, 64<<20), 0o644)
	b.before = b.look(t)
	c := nodetest.RunPod(t, n).Run(withImage(intruderImage(t, n)), nodetest.Sh(fmt.Sprintf(
		"mkdir -p /d && for i in $(seq 200); do mkdir /d/$i; done; echo own >/d/secret; ln -s %s /l; "+
			"ln -s %s/secret /f; ln -s %s%s /c; "+
			"exec /intruder exchange /d /l", b.path, b.path, up, b.path)))
	c.WaitLog("exchanging")
	again(t, func(int) {
		archive, err := written(t, c)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range readArchive(t, archive) {
			// CRIU's images hold the memory of the intruder, which does not know the secret either.
			b.unread(t, f.header.Name, string(f.data))
		}
		if err := os.Remove(archive); err != nil {
			t.Fatal(err)
		}
		r, err := n.Runtime.ContainerStats(nodetest.Context(t), &cri.ContainerStatsRequest{ContainerId: c.ID})
		if err != nil {
			t.Fatal(err)
		}
		if used := r.Stats.GetWritableLayer().GetUsedBytes().GetValue(); used > 32<<20 {
			t.Errorf("its files take %d bytes, as if the host's were among them", used)
		}
		b.check(t)
	})
}
