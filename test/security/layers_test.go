package security

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/image"
	"berth/internal/jail/jailtest"
	rt "berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// Attacks of an image that is only pulled: its layers are unpacked by berthd, nothing of it is started.

// up is a relative way from any directory of a layer to the host's root.
const up = "../../../../../../../../../../../../../../../.."

// escapes are layers (the last is the top one) that would reach a directory of the host if a name or a link of a layer
// were followed outside of it.
func escapes(host string) map[string][][]rt.Entry {
	climb := up + host
	opened := func(link string) map[string][][]rt.Entry {
		return map[string][][]rt.Entry{
			"a file through":          {{rt.Symlink("l", link), rt.File("l/new", 0o4777, "evil")}},
			"a directory through":     {{rt.Symlink("l", link), rt.Dir("l/new", 0o777)}},
			"a mode through":          {{rt.Symlink("l", link), rt.File("l/secret", 0o4777, "evil")}},
			"a directory's mode":      {{rt.Symlink("l", link), rt.Dir("l/dir", 0o4777)}},
			"a whiteout through":      {{rt.Symlink("l", link), rt.Whiteout("l/secret")}},
			"an opaque mark through":  {{rt.Symlink("l", link), rt.Opaque("l/dir")}},
			"a hard link through":     {{rt.Symlink("l", link), rt.Hardlink("h", "l/secret"), rt.File("h", 0o4777, "evil")}},
			"a hard link to the link": {{rt.Symlink("l", link+"/secret"), rt.Hardlink("h", "l"), rt.File("h", 0o4777, "evil")}},
			"a device through":        {{rt.Symlink("l", link), rt.Device("l/new", tar.TypeFifo, 0, 0)}},
			"a link of a lower layer": {{rt.Symlink("l", link)}, {rt.File("l/new", 0o4777, "evil"), rt.Whiteout("l/secret")}},
			"a directory that becomes a link": {
				{rt.Dir("l", 0o755), rt.File("l/a", 0o644, "")},
				{rt.Symlink("l", link)}, {rt.File("l/new", 0o644, "evil"), rt.Whiteout("l/dir")},
			},
			"attributes through": {{rt.Symlink("l", link+"/secret"), rt.File("l", 0o4777, "evil").Xattr("user.evil", "x")}},
		}
	}
	all := map[string][][]rt.Entry{
		"a name that climbs":      {{rt.File(climb[len("../"):]+"/new", 0o4777, "evil")}},
		"a hard link that climbs": {{rt.Hardlink("h", climb+"/secret"), rt.File("h", 0o4777, "evil")}},
		"an absolute hard link":   {{rt.Hardlink("h", host+"/secret"), rt.File("h", 0o4777, "evil")}},
		"an absolute name":        {{rt.File(host+"/secret", 0o4777, "evil")}},
		"the root as a link":      {{rt.Symlink(".", host), rt.File("new", 0o4777, "evil")}},
		"the root as a link, two layers": {
			{rt.Symlink("./", host)}, {rt.File("new", 0o4777, "evil"), rt.Whiteout("secret")},
		},
	}
	for claim, layers := range opened(host) {
		all[claim+" an absolute link"] = layers
	}
	for claim, layers := range opened(climb) {
		all[claim+" a climbing link"] = layers
	}
	return all
}

// pullEscapes pulls each of a set of images, whose layers would reach a directory of the host, and starts
// those that can be pulled.
func pullEscapes(t *testing.T, images func(host string) map[string][][]rt.Entry) {
	t.Helper()
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	for claim := range images("/") {
		t.Run(claim, func(t *testing.T) {
			b := newBait(t)
			var options []rt.ImageOption
			for _, entries := range images(b.path)[claim] {
				options = append(options, rt.Layer(entries...))
			}
			ref := hostile(t, n, options...)
			err := pull(t, n, ref, nil)
			b.check(t)
			if err != nil {
				nodetest.WantCode(t, err, codes.InvalidArgument)
				return
			}
			got := p.Output("cat /l/secret /l /h /secret 2>/dev/null; :", withImage(ref))
			b.unread(t, "a container of the image", got)
			b.check(t)
		})
	}
}

// CVE-2021-32760 (containerd): while a layer was unpacked, the mode of a tar's entry was set by a path, and a link
// of the image led that path to a file of the host, which got the mode. CVE-2021-41089 is the same in `docker cp`.
//
// Seen to fail with O_NOFOLLOW taken out of openDir in unpack/walk.go, and with the modes of files set by their paths
// in place of their descriptors in unpack/attributes.go.
func TestCVE_2021_32760_ALayerSetsAModeOnTheHost(t *testing.T) {
	pullEscapes(t, escapes)
}

// CVE-2021-29136 (umoci): an image whose root directory is a symbolic link was unpacked into the link's target.
//
// Seen to fail with the root's type left unchecked and a link made in its place, in entry of unpack/unpack.go.
func TestCVE_2021_29136_TheRootOfALayerIsALink(t *testing.T) {
	pullEscapes(t, func(host string) map[string][][]rt.Entry {
		return map[string][][]rt.Entry{
			"a link":                  {{rt.Symlink(".", host), rt.File("new", 0o644, "evil")}},
			"a link with a slash":     {{rt.Symlink("./", host), rt.File("new", 0o644, "evil")}},
			"a link of a lower layer": {{rt.Symlink(".", host)}, {rt.File("new", 0o644, "evil")}},
			"a link after the layer's files": {{rt.File("a", 0o644, ""), rt.Symlink("a/..", host),
				rt.File("new", 0o644, "evil")}},
		}
	})
}

// CVE-2025-47290 (containerd 2.1.0): a layer was unpacked on top of its parents, and between the check of a directory
// and its use the content of an image could put a link to the host there, so that a pull changed files of the host.
//
// Berth unpacks each layer by itself. The step in which two layers meet is the variant of a layer whose directories the
// parents have as links (image/variant.go); the images here make that step move files through links of other layers.
// The first of them emptied a directory of the host into the layer, and a pull that then failed deleted the files.
//
// Seen to fail on the build whose fix.apply moved by path.
func TestCVE_2025_47290_LayersMoveFilesOfTheHost(t *testing.T) {
	pullEscapes(t, func(host string) map[string][][]rt.Entry {
		return map[string][][]rt.Entry{
			"a move puts a link where the next one has its source": {
				{rt.Dir("b", 0o755), rt.Dir("q", 0o755), rt.Symlink("a", "b"), rt.Symlink("b/p", "/q")},
				{rt.Symlink("a/p", host), rt.File("b/p/f", 0o644, "evil")},
			},
			"the same, climbing": {
				{rt.Dir("b", 0o755), rt.Dir("q", 0o755), rt.Symlink("a", "b"), rt.Symlink("b/p", "/q")},
				{rt.Symlink("a/p", up+host), rt.File("b/p/f", 0o644, "evil")},
			},
			"and fails after it": {
				{rt.Dir("b", 0o755), rt.Dir("q", 0o755), rt.Symlink("a", "b"), rt.Symlink("b/p", "/q"), rt.File("z", 0o644, "")},
				{rt.Symlink("a/p", host), rt.File("b/p/f", 0o644, "evil"), rt.File("z/f", 0o644, "evil")},
			},
			"into a link of the layer": {
				{rt.Dir("b", 0o755), rt.Symlink("a", "b")},
				{rt.Symlink("b", host), rt.File("a/new", 0o644, "evil")},
			},
			"into a link of a middle layer": {
				{rt.Dir("b", 0o755), rt.Symlink("a", "b")},
				{rt.Symlink("b", host)},
				{rt.File("a/new", 0o644, "evil"), rt.Whiteout("a/secret"), rt.Dir("a/dir", 0o777)},
			},
			"links of links": {
				{rt.Dir("d/e", 0o755), rt.Symlink("a", "d"), rt.Symlink("d/x", "e")},
				{rt.Symlink("a/x", host), rt.File("d/x/dir/new", 0o644, "evil"), rt.File("a/x/new", 0o644, "evil")},
			},
			"attributes of the host": {
				{rt.Symlink("a", host)}, {rt.File("a/dir/f", 0o644, "evil")},
			},
		}
	})
}

// CVE-2025-11395 (podman): layers of an archive that is loaded, in place of pulled, overwrote files of the host.
//
// Archives go through the same code as pulls: seen to fail with O_NOFOLLOW taken out of openDir in unpack/walk.go.
func TestCVE_2025_11395_AnArchiveOverwritesTheHost(t *testing.T) {
	store, err := image.Open(context.Background(),
		image.Config{Children: image.ChildrenOf(jailtest.Jail(t)), Root: filepath.Join(t.TempDir(), "store")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	for claim := range escapes("/") {
		t.Run(claim, func(t *testing.T) {
			b := newBait(t)
			var options []rt.ImageOption
			for _, entries := range escapes(b.path)[claim] {
				options = append(options, rt.Layer(entries...))
			}
			made, err := rt.Image(options...)
			if err != nil {
				t.Fatal(err)
			}
			tag, err := name.NewTag("loaded.test/x:1")
			if err != nil {
				t.Fatal(err)
			}
			var archive bytes.Buffer
			if err := tarball.Write(tag, made, &archive); err != nil {
				t.Fatal(err)
			}
			_, _ = store.ImportArchive(context.Background(), &archive) // refused or harmless
			b.check(t)
		})
	}
}

// CVE-2026-50163 (oras-go): a tar in an artifact, which ORAS unpacks where the artifact says so, had a hard link that
// led out of its directory. Berth unpacks no artifacts. What it takes from them are names of files, which lead out as
// well.
//
// Seen to fail with os.MkdirAll and os.Link of joined paths in makeFile of image/artifact.go, and the name as it is in
// filePath of image/source/artifact.go.
func TestCVE_2026_50163_AnArtifactLinksToTheHost(t *testing.T) {
	underEach(t, func(t *testing.T, n *node.Node, s setup) {
		b := newBait(t)
		plain, err := rt.Tar(rt.Hardlink("dir/hard", b.path+"/secret"), rt.Hardlink("dir/up", up+b.path+"/secret"),
			rt.Symlink("dir/soft", b.path), rt.File("dir/soft/made", 0o644, "made"))
		if err != nil {
			t.Fatal(err)
		}
		packed, err := rt.NewLayer(plain, rt.Gzip, false)
		if err != nil {
			t.Fatal(err)
		}
		r, err := packed.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		tar := rt.ArtifactFile{MediaType: "application/vnd.oci.image.layer.v1.tar+gzip", Body: body,
			Annotations: map[string]string{"io.deis.oras.content.unpack": "true"}}
		for _, title := range []string{"dir", b.path + "/made", up + b.path + "/made", up + b.path + "/secret",
			"x/../../" + up + b.path + "/dir/made", "../blob", "../../1/fs/made"} {
			repo := fmt.Sprintf("artifact%d", serial.Add(1))
			tar.Title = title
			made := rt.Artifact{Type: "a/b", Files: []rt.ArtifactFile{tar}}
			if _, err := n.Registry.PushArtifact(repo, "1", made); err != nil {
				t.Fatal(err)
			}
			ref := node.RegistryHost + "/" + repo + ":1"
			nodetest.Pull(t, n, ref)
			c := s.pod(t, n).Run(nodetest.Mounts(&cri.Mount{ContainerPath: "/a", Image: &cri.ImageSpec{Image: ref},
				Readonly: true}))
			confined(t, c)
			b.unread(t, "the name "+title, c.Sh("grep -arh "+b.secret+" /a; :"))
			if got := c.Sh("find /a -type f | wc -l; find /a -type l"); got != "1" {
				t.Errorf("the artifact with the name %s has the files %s", title, got)
			}
			b.check(t)
		}
	})
}

// bomb pulls an image whose layer is small and claims much, and bounds what berthd spends on it.
func bomb(t *testing.T, n *node.Node, memory int64, took time.Duration, options ...rt.ImageOption) {
	t.Helper()
	same := alive(t, n)
	ref := publish(t, n, options...)
	begin := time.Now()
	var err error
	berthd, keeper := peak(t, n, func() { err = pull(t, n, ref, nil) })
	t.Logf("pull took %v, berthd and its children %d MiB, keeper %d MiB: %v", time.Since(begin),
		berthd>>20, keeper>>20, err)
	if berthd > memory || keeper > memory {
		t.Errorf("berthd and its children grew by %d MiB and the keeper by %d MiB, more than %d MiB", berthd>>20,
			keeper>>20, memory>>20)
	}
	if limit := node.Patience(took); time.Since(begin) > limit {
		t.Errorf("the pull took %v, more than %v", time.Since(begin), limit)
	}
	if err != nil {
		nodetest.WantCode(t, err, codes.InvalidArgument, codes.ResourceExhausted)
	}
	same()
	// The node still works.
	if err := pull(t, n, node.Busybox, nil); err != nil {
		t.Errorf("after the attack another image cannot be pulled: %v", err)
	}
}

// childrenTime is the processor time, in seconds and without the kernel's part, of all children of a process
// that have ended (proc_pid_stat(5), cutime).
func childrenTime(t *testing.T, pid int) float64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	ticks, err := strconv.Atoi(strings.Fields(rest)[13]) // the third field of all is the first of these
	if err != nil {
		t.Fatal(err)
	}
	return float64(ticks) / 100
}

// CVE-2017-14992 (Docker): a layer of a few MiB that unpacks to very much made dockerd use all memory of the node,
// since the content of files was held in memory while it was checked.
//
// Seen to fail with io.ReadAll of each file's content in place of the copy by pieces, in write of unpack/unpack.go;
// for the deep directories, with the bound on a layer's entries taken out; and, for many names, with a look
// at all directories in remove of unpack/unpack.go (12 to 14 times as long).
func TestCVE_2017_14992_ASmallLayerExhaustsMemory(t *testing.T) {
	n := nodetest.Shared(t)
	t.Run("a file of zeros", func(t *testing.T) {
		bomb(t, n, 128<<20, time.Minute, rt.Layer(rt.File("zeros", 0o644, strings.Repeat("\x00", 256<<20))))
	})
	t.Run("deep directories", func(t *testing.T) {
		// Each name repeats all those above it, which packs well: some hundred KiB of layer, 16 MB of names.
		var entries []rt.Entry
		for i := range 4_000 {
			entries = append(entries, rt.Dir(fmt.Sprintf("%s%d", strings.Repeat("d/", 1990), i), 0o755))
		}
		bomb(t, n, 128<<20, 2*time.Minute, rt.Layer(entries...))
	})
	t.Run("many names", func(t *testing.T) {
		// A link to nothing in the place of a directory's content, again and again: each replacement must not look
		// at all others.
		took := func(try, count int) float64 {
			var entries []rt.Entry
			for i := range count {
				// a layer that is there is not unpacked again
				entries = append(entries, rt.File(fmt.Sprintf("f%d/%d/x", try, i), 0o644, ""))
			}
			for i := range count {
				entries = append(entries, rt.Symlink(fmt.Sprintf("f%d/%d", try, i), "nothing"))
			}
			before := childrenTime(t, n.PID())
			bomb(t, n, 256<<20, 2*time.Minute, rt.Layer(entries...))
			return childrenTime(t, n.PID()) - before
		}
		// Four times as many take the children that unpack four times as long, and sixteen times if each looks at all others.
		// Other load of the machine may spoil one measurement.
		ratio := 0.0
		for try := range 3 {
			few, many := took(try, 2000), took(try, 8000)
			ratio = many / few
			t.Logf("2000 names took %.2f s of processor time, and 8000 took %.2f s", few, many)
			if ratio < 8 {
				return
			}
		}
		t.Errorf("four times as many names take %.1f times as long", ratio)
	})
}

// CVE-2025-58183 (Go's archive/tar, and so containerd, podman, CRI-O and Docker): the map of a sparse file in the tar
// may claim any number of regions, for which memory was taken at once.
//
// The bound is Go's own: not seen to fail, as it cannot be taken out without another standard library. Berth's own part
// is that the zeros of a sparse file are not written one by one: seen to fail (by time) with maxFile taken out
// of unpack/unpack.go.
func TestCVE_2025_58183_ASparseFileOfAnySize(t *testing.T) {
	n := nodetest.Shared(t)
	t.Run("regions", func(t *testing.T) { bomb(t, n, 128<<20, time.Minute, rt.RawLayer(sparse(5_000_000, "1\n"))) })
	t.Run("size", func(t *testing.T) { bomb(t, n, 128<<20, time.Minute, rt.RawLayer(sparse(1, "9000000000000000\n"))) })
}

// sparse is a tar with one file in the format GNU sparse 1.0, whose map has so many regions.
func sparse(regions int, size string) []byte {
	var content bytes.Buffer
	fmt.Fprintf(&content, "%d\n", regions)
	for range regions {
		content.WriteString("0\n0\n")
	}
	content.Write(make([]byte, (512-content.Len()%512)%512))
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	header := &tar.Header{
		Typeflag: tar.TypeReg, Name: "GNUSparseFile.0/sparse", Mode: 0o644, Size: int64(content.Len()), Format: tar.FormatPAX,
		PAXRecords: map[string]string{
			"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "sparse",
			"GNU.sparse.realsize": strings.TrimSpace(size),
		},
	}
	if err := w.WriteHeader(header); err != nil {
		// The writer refuses records that it would have to understand; write them as a file of type x by hand.
		return sparseByHand(header, content.Bytes())
	}
	_, _ = w.Write(content.Bytes())
	_ = w.Close()
	return out.Bytes()
}

// sparseByHand writes the extended header of a sparse file itself.
func sparseByHand(h *tar.Header, content []byte) []byte {
	var records bytes.Buffer
	for key, value := range h.PAXRecords {
		size := len(key) + len(value) + 3
		size += len(fmt.Sprint(size))
		if record := fmt.Sprintf("%d %s=%s\n", size, key, value); len(record) == size {
			records.WriteString(record)
		} else {
			fmt.Fprintf(&records, "%d %s=%s\n", len(record), key, value)
		}
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, part := range []struct {
		kind byte
		name string
		body []byte
	}{{'x', "PaxHeaders/sparse", records.Bytes()}, {tar.TypeReg, h.Name, content}} {
		block := make([]byte, 512)
		copy(block, part.name)
		copy(block[100:], "0000644\x000000000\x000000000\x00")
		copy(block[124:], fmt.Sprintf("%011o\x00%011o\x00", len(part.body), 0))
		block[156] = part.kind
		copy(block[257:], "ustar\x0000")
		copy(block[148:], "        ")
		sum := 0
		for _, b := range block {
			sum += int(b)
		}
		copy(block[148:], fmt.Sprintf("%06o\x00 ", sum))
		out.Write(block)
		out.Write(part.body)
		out.Write(make([]byte, (512-len(part.body)%512)%512))
	}
	_ = w.Close()
	out.Write(make([]byte, 1024))
	return out.Bytes()
}

// CVE-2026-95838 (containerd): each opaque whiteout of a layer was applied by walking the directory that it is in,
// so that many of them in a directory with many files took a time that grows with the product.
//
// Seen to fail with a walk of the directory at each opaque mark, in entry of unpack/unpack.go.
func TestCVE_2026_95838_ManyOpaqueWhiteouts(t *testing.T) {
	n := nodetest.Shared(t)
	entries := []rt.Entry{rt.Dir("d", 0o755)}
	for i := range 20_000 {
		entries = append(entries, rt.File(fmt.Sprintf("d/%d", i), 0o644, ""))
	}
	for range 20_000 {
		entries = append(entries, rt.Opaque("d"))
	}
	bomb(t, n, 256<<20, time.Minute, rt.Layer(entries...))
}

// CVE-2021-20291 (containers/storage): a layer that is no sound archive left a reader and a writer waiting
// for each other, and with them all further pulls of the node.
//
// Seen to fail with the stop of readAhead's goroutine taken out, in image/stream.go.
func TestCVE_2021_20291_ABrokenLayerBlocksPulls(t *testing.T) {
	n := nodetest.Shared(t)
	before := metric(t, "go_goroutines")
	whole, err := rt.Tar(rt.Random(1, "data", 8, 8<<20)...)
	if err != nil {
		t.Fatal(err)
	}
	for claim, layer := range map[string][]byte{
		"no tar":            bytes.Repeat([]byte("no tar "), 1<<20),
		"cut in a header":   whole[:len(whole)/2/512*512+100],
		"cut in a file":     whole[:len(whole)/3],
		"nothing":           {},
		"another tar after": append(append([]byte{}, whole...), bytes.Repeat([]byte{0xff}, 4<<20)...),
		"a broken header":   append(bytes.Repeat([]byte{0xff}, 512), whole...),
	} {
		for _, packed := range []rt.Compression{rt.Gzip, rt.Zstd, rt.Uncompressed} {
			t.Run(fmt.Sprintf("%s, %s", claim, packed), func(t *testing.T) {
				ref := publish(t, n, rt.Compressed(packed), rt.RawLayer(layer))
				ctx, cancel := context.WithTimeout(context.Background(), node.Patience(time.Minute))
				defer cancel()
				if err := pullWith(ctx, n, ref); status.Code(err) == codes.DeadlineExceeded {
					t.Fatalf("the pull hangs: %v", err)
				}
			})
		}
	}
	if err := pull(t, n, hostile(t, n), nil); err != nil {
		t.Errorf("a sound image cannot be pulled any more: %v", err)
	}
	settledMetric(t, "go_goroutines", before+10)
}
