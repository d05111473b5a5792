package image

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"berth/internal/asroot"
	"berth/internal/image/source"
	"berth/internal/model"
	rt "berth/internal/registrytest"
)

const modelType = "application/vnd.example.model"

// pushArtifact pushes an artifact of files under a name with a tag.
func (f *fixture) pushArtifact(name string, files ...rt.ArtifactFile) ocispec.Descriptor {
	f.t.Helper()
	repo, tag, _ := strings.Cut(name, ":")
	desc, err := f.reg.PushArtifact(repo, tag, rt.Artifact{Type: modelType, Files: files})
	if err != nil {
		f.t.Fatal(err)
	}
	return desc
}

// filesOf are the files of an artifact as a container would see them: path to content. Directories end in a slash.
func (f *fixture) filesOf(id string) map[string]string {
	f.t.Helper()
	layers, err := f.AddReference(id, "filesOf")
	if err != nil {
		f.t.Fatal(err)
	}
	defer f.Release("filesOf")
	if len(layers.Dirs) != 1 {
		f.t.Errorf("an artifact has the directories %v", layers.Dirs)
	}
	found := map[string]string{}
	err = filepath.Walk(layers.Dirs[0], func(at string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(layers.Dirs[0], at)
		if err != nil || info.IsDir() {
			if rel != "." {
				found[rel+"/"] = info.Mode().Perm().String()
			}
			return err
		}
		data, err := os.ReadFile(at)
		found[rel] = string(data)
		if info.Mode() != artifactFile {
			f.t.Errorf("%s has the mode %s", rel, info.Mode())
		}
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return found
}

func (f *fixture) wantFiles(id string, want map[string]string) {
	f.t.Helper()
	for p := range want {
		for dir := filepath.Dir(p); dir != "."; dir = filepath.Dir(dir) {
			want[dir+"/"] = "-rwxr-xr-x"
		}
	}
	if got := f.filesOf(id); fmt.Sprint(got) != fmt.Sprint(want) {
		f.t.Errorf("files %.2000q, and should be %.2000q", got, want)
	}
}

func TestAnArtifactIsPulledAsItsFiles(t *testing.T) {
	f := newFixture(t)
	ctx := context.Background()
	weights := bytes.Repeat([]byte("weights "), 100_000)
	untitled := rt.ArtifactFile{Body: []byte("no name")}
	desc := f.pushArtifact("model:1",
		rt.ArtifactFile{Title: "model.bin", Body: weights, MediaType: "application/vnd.cncf.model.weight.v1.raw"},
		rt.TitledFile("conf/a/config.json", "{}"), rt.TitledFile("conf/empty", ""), untitled,
		rt.ArtifactFile{Body: []byte("pack"), Annotations: map[string]string{"org.cncf.model.filepath": "pack/a"}},
		rt.ArtifactFile{Body: []byte("old"), Annotations: map[string]string{"org.cnai.model.filepath": "pack/b"}},
		rt.ArtifactFile{MediaType: ocispec.MediaTypeEmptyJSON, Body: []byte("{}")},
		rt.ArtifactFile{Title: "odd", MediaType: "no type\r\nof any kind", Body: []byte("odd")},
		rt.ArtifactFile{Title: "layer.tar.gz", MediaType: ocispec.MediaTypeImageLayerGzip, Body: []byte("not even a tar")},
		rt.ArtifactFile{Title: "dir", MediaType: ocispec.MediaTypeImageLayerGzip, Body: []byte("packed"),
			Annotations: map[string]string{"io.deis.oras.content.unpack": "true"}},
	)
	got, err := f.Pull(ctx, PullRequest{Ref: host + "model:1"})
	if err != nil {
		t.Fatal(err)
	}
	sum := strings.Replace(untitled.Descriptor().Digest.String(), ":", "-", 1)
	f.wantFiles(got.ID, map[string]string{"model.bin": string(weights), "conf/a/config.json": "{}", "conf/empty": "",
		"pack/a": "pack", "pack/b": "old", "layer.tar.gz": "not even a tar", "dir": "packed", sum: "no name",
		"odd": "odd"})
	size := uint64(desc.Size) + uint64(len(weights)) + uint64(len("{}"+"{}"+"no name"+"pack"+"old"+"{}"+"not even a tar"+
		"packed"+"odd"))
	if got.ID != desc.Digest.String() || got.Artifact != modelType || got.Size != size || len(got.Layers) != 10 {
		t.Errorf("the artifact is %+v; its size should be %d", got, size)
	}
	for _, ref := range []string{host + "model:1", host + "model@" + desc.Digest.String(), got.ID,
		strings.TrimPrefix(got.ID, "sha256:")[:12]} {
		if one, err := f.Get(ctx, ref); err != nil || one.ID != got.ID || one.RepoDigests[0] !=
			host+"model@"+desc.Digest.String() {
			t.Errorf("%s is %+v; %v", ref, one, err)
		}
	}
	if list, err := f.List(ctx); err != nil || len(list) != 1 || list[0].Artifact != modelType {
		t.Errorf("list %v, %v", list, err)
	}
	usage, err := f.Usage(ctx)
	if err != nil || usage.UsedBytes < size || usage.UsedBytes > size+(1<<20) {
		t.Errorf("it takes %d bytes of %d; %v", usage.UsedBytes, size, err)
	}
	f.reopen()
	f.reg.ResetRequests()
	if again := f.pull("model:1"); again != got.ID {
		t.Errorf("it is %s after a restart, and was %s", again, got.ID)
	}
	for _, r := range f.reg.Requests() {
		if strings.Contains(r.Path, "/blobs/") {
			t.Errorf("%s was loaded again", r.Path)
		}
	}
	if err := f.Remove(ctx, host+"model:1"); err != nil {
		t.Fatal(err)
	}
	f.wantNothing()
}

// TestArtifactsShareBlobs: a blob is stored once, whatever the names of its files.
func TestArtifactsShareBlobs(t *testing.T) {
	f := newFixture(t)
	ctx := context.Background()
	f.pushArtifact("a:1", rt.TitledFile("one", "shared"), rt.TitledFile("two", "shared"))
	f.pushArtifact("b:1", rt.TitledFile("three/four", "shared"))
	// An image's layer, and an artifact's blob with the same bytes, are two things.
	plain := mustTar(t, rt.File("in", 0o644, strings.Repeat("an image", 20_000)))
	f.push("image:1", rt.RawLayer(plain), rt.Compressed(rt.Uncompressed))
	f.pushArtifact("tar:1", rt.ArtifactFile{Title: "layer.tar", Body: plain})
	a := f.pull("a:1")
	f.reg.ResetRequests()
	b := f.pull("b:1")
	if n := f.reg.Sent(rt.TitledFile("", "shared").Descriptor().Digest.String()); n != 0 {
		t.Errorf("%d bytes of a blob were loaded again", n)
	}
	f.pull("image:1")
	alone, err := f.Usage(ctx)
	if err != nil {
		t.Fatal(err)
	}
	packed := f.pull("tar:1")
	if both, err := f.Usage(ctx); err != nil || both.UsedBytes < alone.UsedBytes+uint64(len(plain)) {
		t.Errorf("%d bytes with an artifact of %d more, and %d without; %v", both.UsedBytes, len(plain), alone.UsedBytes, err)
	}
	inode := func(id, name string) uint64 {
		layers, err := f.AddReference(id, "inode")
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(layers.Dirs[0], name), &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	if one, two, three := inode(a, "one"), inode(a, "two"), inode(b, "three/four"); one != two || two != three {
		t.Errorf("one blob is the files %d, %d and %d", one, two, three)
	}
	f.wantFiles(packed, map[string]string{"layer.tar": string(plain)})
	f.Release("inode")
	for _, name := range []string{"a:1", "image:1"} {
		if err := f.Remove(ctx, host+name); err != nil {
			t.Fatal(err)
		}
	}
	f.wantFiles(b, map[string]string{"three/four": "shared"})
	f.wantFiles(packed, map[string]string{"layer.tar": string(plain)})
	for _, name := range []string{"b:1", "tar:1"} {
		if err := f.Remove(ctx, host+name); err != nil {
			t.Fatal(err)
		}
	}
	f.wantNothing()
}

// TestNamesOfFilesStayInTheArtifact: a registry writes any names.
func TestNamesOfFilesStayInTheArtifact(t *testing.T) {
	f := newFixture(t)
	deep := strings.Repeat("d/", 127) + "f"
	long := strings.Repeat(strings.Repeat("n", 200)+"/", 30) + "f"
	one := func(title string) []rt.ArtifactFile { return []rt.ArtifactFile{rt.TitledFile(title, "x")} }
	two := func(first, second string) []rt.ArtifactFile {
		return []rt.ArtifactFile{rt.TitledFile(first, "x"), rt.TitledFile(second, "y")}
	}
	type is map[string]string
	for name, c := range map[string]struct {
		files []rt.ArtifactFile
		want  is // nil: it is refused
		words string
	}{
		"one that leads up":          {one("../../../../etc/up"), is{"etc/up": "x"}, ""},
		"one that is absolute":       {one("/etc/abs"), is{"etc/abs": "x"}, ""},
		"one that goes up within":    {one("a/../../b"), is{"b": "x"}, ""},
		"one that is odd":            {one(" \n\"\\"), is{" \n\"\\": "x"}, ""},
		"one that ends in a slash":   {one("a/"), is{"a": "x"}, ""},
		"one that looks like a mark": {two(".wh.a", "a"), is{".wh.a": "x", "a": "y"}, ""},
		"one that is deep":           {one(deep), is{deep: "x"}, ""},
		"one twice":                  {append(one("a"), one("./a")...), is{"a": "x"}, ""},
		"one of two files":           {two("a", "b/../a"), nil, `"b/../a"`},
		"a file in a file":           {two("a", "a/b/c"), nil, "exclude"},
		"a file that is a directory": {two("a/b/c", "a/b"), nil, "exclude"},
		"the root":                   {one("a/.."), nil, "root"},
		"above the root":             {one(".."), nil, "root"},
		"a NUL":                      {one("a\x00b"), nil, "NUL"},
		"a long name":                {one(strings.Repeat("n", 256)), nil, "too long"},
		"a long path":                {one(long), nil, "too long"},
		"a path without end":         {one("d/" + deep), nil, "too long"},
		"a media type of megabytes": {[]rt.ArtifactFile{{Title: "a", MediaType: "a/" + strings.Repeat("x", 1<<20)}}, nil,
			"media type"},
		"a manifest": {[]rt.ArtifactFile{{Title: "a", MediaType: ocispec.MediaTypeImageManifest}}, nil,
			"that of a manifest"},
	} {
		t.Run(name, func(t *testing.T) {
			f.t = t
			f.pushArtifact("odd:1", c.files...)
			got, err := f.Pull(t.Context(), PullRequest{Ref: host + "odd:1"})
			if c.want == nil {
				wantErr(t, err, errdefs.ErrInvalidArgument, c.words)
				f.wantNothing()
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			f.wantFiles(got.ID, c.want)
			layers, err := f.AddReference(got.ID, "root")
			if err != nil {
				t.Fatal(err)
			}
			f.Release("root")
			entries, err := os.ReadDir(filepath.Dir(layers.Dirs[0]))
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if !slices.Contains([]string{layerFS, layerFileName, syncedFile}, e.Name()) {
					t.Errorf("%s is beside the files", e.Name())
				}
			}
			if err := f.Remove(t.Context(), got.ID); err != nil {
				t.Fatal(err)
			}
			f.wantNothing()
		})
	}
}

func TestArtifactsAreBounded(t *testing.T) {
	f := newFixture(t)
	other := f.cfg.Settings
	other.Limits = source.Limits{Layers: 3, Entries: 6, Bytes: 3000}
	other.Limits.Layer.Bytes = 2000
	adopt, err := f.Prepare(other)
	if err != nil {
		t.Fatal(err)
	}
	adopt()
	long := strings.Repeat("x", 1900)
	for name, c := range map[string]struct {
		key   string
		files []rt.ArtifactFile
	}{
		"a long file": {"max_layer_bytes", []rt.ArtifactFile{rt.TitledFile("a", strings.Repeat("x", 2001))}},
		"long files":  {"max_image_bytes", []rt.ArtifactFile{rt.TitledFile("a", long), rt.TitledFile("b", long+"y")}},
		"many files": {"max_layers", []rt.ArtifactFile{rt.TitledFile("a", "a"), rt.TitledFile("b", "b"),
			rt.TitledFile("c", "c"), rt.TitledFile("d", "d")}},
		"many directories": {"max_image_entries", []rt.ArtifactFile{rt.TitledFile("a/b/c", "a"),
			rt.TitledFile("d/e/f/g", "b")}},
	} {
		t.Run(name, func(t *testing.T) {
			f.t = t
			f.reg.ResetRequests()
			f.pushArtifact("much:1", c.files...)
			_, err := f.Pull(t.Context(), PullRequest{Ref: host + "much:1"})
			wantErr(t, err, errdefs.ErrResourceExhausted, c.key)
			for _, r := range f.reg.Requests() {
				if strings.Contains(r.Path, "/blobs/") {
					t.Errorf("%s was asked for", r.Path)
				}
			}
			f.wantNothing()
		})
	}
}

// TestABlobOfAnArtifactIsLoadedAsALayerIs: over several connections, which break, and from where it broke.
func TestABlobOfAnArtifactIsLoadedAsALayerIs(t *testing.T) {
	f := newRangesFixture(t)
	body := make([]byte, 6<<20)
	rand.New(rand.NewSource(1)).Read(body)
	file := rt.ArtifactFile{Title: "model", Body: body}
	f.pushArtifact("big:1", file)
	sum := file.Descriptor().Digest.String()

	f.reg.SetFaults(rt.Faults{Corrupt: sum})
	_, err := f.Pull(t.Context(), PullRequest{Ref: host + "big:1"})
	wantErr(t, err, errdefs.ErrFailedPrecondition, sum)
	f.wantNothing()

	f.reg.SetFaults(rt.Faults{BytesPerSecond: 1 << 20, Path: "/blobs/"})
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err = f.Pull(ctx, PullRequest{Ref: host + "big:1"}); err == nil {
		t.Error("a pull that was cancelled is done")
	}
	f.dropLeftovers() // the configuration was complete
	f.wantNothing()
	f.wantNoRanges()

	f.reg.SetFaults(rt.Faults{CutWithin: 2 << 20, Path: "/blobs/"})
	f.reg.ResetRequests()
	id := f.pull("big:1")
	f.wantFiles(id, map[string]string{"model": string(body)})
	ranges := 0
	for _, r := range f.reg.Requests() {
		if strings.Contains(r.Path, "/blobs/"+sum) {
			ranges++
		}
	}
	if ranges < 4 {
		t.Errorf("it was loaded with %d requests", ranges)
	}
	f.wantNoRanges()
}

// TestABlobThatIsHereHasTheSizeThatItsManifestSays, as one that is loaded has: lists have the artifact's size by it,
// and it is saved and pushed with it. Seen to fail where a blob that was here was taken whatever its size.
func TestABlobThatIsHereHasTheSizeThatItsManifestSays(t *testing.T) {
	f := newFixture(t)
	file := rt.TitledFile("a", "some bytes")
	f.pushArtifact("a:1", file)
	f.pull("a:1")
	for what, edit := range map[string]func(*ocispec.Manifest){
		"a file":            func(m *ocispec.Manifest) { m.Layers[0].Size = 1 << 30 },
		"the second of two": func(m *ocispec.Manifest) { m.Layers = append(m.Layers, m.Layers[0]); m.Layers[1].Size-- },
		"the configuration": func(m *ocispec.Manifest) { m.Config.Size++ },
	} {
		m := rt.Artifact{Type: "application/x", Files: []rt.ArtifactFile{file}}.Manifest()
		edit(&m)
		raw, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.reg.PutManifest("lie", "1", m.MediaType, raw); err != nil {
			t.Fatal(err)
		}
		_, err = f.Pull(t.Context(), PullRequest{Ref: host + "lie:1"})
		wantErr(t, err, errdefs.ErrFailedPrecondition, "the manifest says")
		if t.Failed() {
			t.Fatal(what)
		}
	}
}

// TestPullsOfOneArtifactAtOnce: they share its blobs, and one makes the tree of its files.
func TestPullsOfOneArtifactAtOnce(t *testing.T) {
	f := newFixture(t)
	f.pushArtifact("a:1", rt.TitledFile("a/b", "x"), rt.TitledFile("c", "y"))
	for range 10 {
		done := make(chan error)
		for range 8 {
			go func() {
				_, err := f.Pull(context.Background(), PullRequest{Ref: host + "a:1"})
				done <- err
			}()
		}
		for range 8 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if n := len(f.layerDirs()); n != 4 {
			t.Errorf("%d directories, and should be those of a configuration, two files and their tree", n)
		}
		if err := f.Remove(context.Background(), host+"a:1"); err != nil {
			t.Fatal(err)
		}
		f.wantNothing()
	}
}

// TestAnArtifactStaysWhileItIsHeld: containers have it mounted, also after a restart, and after the loss of the
// database.
func TestAnArtifactStaysWhileItIsHeld(t *testing.T) {
	f := newFixture(t)
	ctx := context.Background()
	f.pushArtifact("a:1", rt.TitledFile("a/b", "x"), rt.TitledFile("c", "y"))
	want := map[string]string{"a/b": "x", "c": "y"}
	id := f.pull("a:1")
	if _, err := f.AddReference(id, "c1"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(f.cfg.Root, "images.db")); err != nil {
		t.Fatal(err)
	}
	f.open()
	f.wantFiles(id, want)
	if m, err := f.Manifest(id); err != nil || !strings.Contains(string(m), modelType) {
		t.Errorf("manifest %s, %v", m, err)
	}
	if _, err := f.AddReference(id, "c1"); err != nil {
		t.Fatal(err)
	}
	if err := f.Remove(ctx, id); err != nil {
		t.Fatal(err)
	}
	f.reopen()
	if _, err := f.AddReference(id, "c1"); err != nil {
		t.Fatal(err)
	}
	if err := f.Collect(ctx); err != nil {
		t.Fatal(err)
	}
	f.wantFiles(id, want)
	f.Release("c1")
	f.eventually("the artifact is gone", func() bool { return len(f.layerDirs()) == 0 })
}

func TestAKillWhileAnArtifactIsPulledLeavesOnlyWholeBlobs(t *testing.T) {
	asroot.Need(t, "confined children")
	f := newFixture(t)
	ctx := context.Background()
	body := make([]byte, 1<<20)
	rand.New(rand.NewSource(2)).Read(body)
	small, big := rt.TitledFile("small", "s"), rt.ArtifactFile{Title: "d/big", Body: body}
	f.pushArtifact("model:1", small, big)
	for _, wait := range []time.Duration{0, 30, 150, 300} {
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		f.reg.ResetRequests()
		f.reg.SetFaults(rt.Faults{BytesPerSecond: 100 << 10}) // the pull does not end before it is killed
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), "BERTH_TEST_PULL_ROOT="+f.cfg.Root, "BERTH_TEST_PULL_HOSTS="+f.cfg.HostsDir,
			"BERTH_TEST_PULL_REF="+host+"model:1", "BERTH_TEST_PULL_PROGRAM="+f.program())
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		f.eventually("the pull is under way", func() bool { return f.reg.Sent(big.Descriptor().Digest.String()) > 0 })
		time.Sleep(wait * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		f.reg.SetFaults(rt.Faults{})
		f.open()
		if list, _ := f.List(ctx); len(list) != 0 {
			t.Errorf("half an artifact is listed: %v", list)
		}
		if err := f.Collect(ctx); err != nil {
			t.Fatal(err)
		}
		for _, n := range f.layerDirs() {
			if _, err := os.Stat(filepath.Join(f.cfg.Root, "layers", n, "layer.json")); err != nil {
				t.Errorf("half a blob is left: %v", err)
			}
		}
		had := len(f.layerDirs())
		f.reg.ResetRequests()
		f.wantFiles(f.pull("model:1"), map[string]string{"small": "s", "d/big": string(body)})
		if had == 2 && f.reg.Sent(small.Descriptor().Digest.String()) != 0 {
			t.Error("a whole blob was loaded again")
		}
		if err := f.Remove(ctx, host+"model:1"); err != nil {
			t.Fatal(err)
		}
		f.wantNothing()
	}
}

// TestWhatACrashLeavesOfATreeGoes: a kill between the tree of an artifact's files and its record.
func TestWhatACrashLeavesOfATreeGoes(t *testing.T) {
	f := newFixture(t)
	ctx := context.Background()
	f.pushArtifact("a:1", rt.TitledFile("a/b", "x"))
	f.pull("a:1")
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"images.db", "records"} {
		if err := os.RemoveAll(filepath.Join(f.cfg.Root, name)); err != nil {
			t.Fatal(err)
		}
	}
	f.open()
	if err := f.Collect(ctx); err != nil {
		t.Fatal(err)
	}
	if n := len(f.layerDirs()); n != 2 {
		t.Errorf("%d directories, and should be those of the two blobs", n)
	}
	f.reg.ResetRequests()
	f.wantFiles(f.pull("a:1"), map[string]string{"a/b": "x"})
	for _, r := range f.reg.Requests() {
		if strings.Contains(r.Path, "/blobs/") {
			t.Errorf("%s was loaded again", r.Path)
		}
	}
}

// TestAManifestThatIsAConfiguration: one document can be both, and then an image and an artifact have one ID.
func TestAManifestThatIsAConfiguration(t *testing.T) {
	f := newFixture(t)
	layer := mustTar(t, rt.File("a", 0o644, "x"))
	f.reg.PutBlob(layer)
	config := f.reg.PutBlob([]byte("{}"))
	file := rt.ArtifactFile{Body: layer, MediaType: ocispec.MediaTypeImageLayer}.Descriptor()
	both := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"artifactType":"a/b","config":{"mediaType":"x/y","digest":%q,`+
		`"size":2},"layers":[{"mediaType":"x/z","digest":%q,"size":%d}],"os":"linux","architecture":%q,"rootfs":`+
		`{"type":"layers","diff_ids":[%q]}}`, ocispec.MediaTypeImageManifest, config, file.Digest, file.Size,
		runtime.GOARCH, file.Digest)
	image := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":%q,"digest":%q,"size":%d},"layers":`+
		`[{"mediaType":%q,"digest":%q,"size":%d}]}`, ocispec.MediaTypeImageManifest, ocispec.MediaTypeImageConfig,
		f.reg.PutBlob([]byte(both)), len(both), ocispec.MediaTypeImageLayer, file.Digest, file.Size)
	f.putManifest("artifact:1", ocispec.MediaTypeImageManifest, []byte(both))
	f.putManifest("image:1", ocispec.MediaTypeImageManifest, []byte(image))
	for _, order := range [][]string{{"artifact:1", "image:1"}, {"image:1", "artifact:1"}} {
		id := f.pull(order[0])
		_, err := f.Pull(t.Context(), PullRequest{Ref: host + order[1]})
		wantErr(t, err, errdefs.ErrInvalidArgument, "manifest of an artifact", id)
		if err := f.Remove(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		f.wantNothing()
	}
}

// TestAnIndexOfArtifactsYieldsThePlatformOfTheNode: by its entries alone, since an artifact itself names no platform.
// An artifact beside an image, such as a list of what is in it, is not taken for the image.
func TestAnIndexOfArtifactsYieldsThePlatformOfTheNode(t *testing.T) {
	f := newFixture(t)
	var entries []ocispec.Descriptor
	for _, arch := range []string{"s390x", runtime.GOARCH} {
		desc := f.pushArtifact("bundle:"+arch, rt.TitledFile("bin/program", "for "+arch))
		desc.Platform = &ocispec.Platform{OS: "linux", Architecture: arch}
		entries = append(entries, desc)
	}
	put := func(name string, entries ...ocispec.Descriptor) {
		t.Helper()
		index := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: entries}
		index.SchemaVersion = 2
		raw, err := json.Marshal(index)
		if err != nil {
			t.Fatal(err)
		}
		f.putManifest(name, index.MediaType, raw)
	}
	put("bundle:1", entries...)
	bundle := f.pull("bundle:1")
	if bundle != entries[1].Digest.String() {
		t.Errorf("it is %s, and should be %s", bundle, entries[1].Digest)
	}
	f.wantFiles(bundle, map[string]string{"bin/program": "for " + runtime.GOARCH})

	img := f.push("image:image", rt.WithFiles(map[string]string{"a": "b"}))
	size, err := img.Size()
	if err != nil {
		t.Fatal(err)
	}
	image := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.Digest(digestOf(t, img)),
		Size: size}
	sbom := f.pushArtifact("image:sbom", rt.TitledFile("sbom.json", "{}"))
	put("image:1", sbom, image)
	want := id(t, img)
	if got := f.pull("image:1"); got != want {
		t.Errorf("the image is %s, and should be %s", got, want)
	}
	f.pushArtifact("image:other", rt.TitledFile("bin/program", "for s390x"))
	put("image:2", sbom, entries[0])
	_, err = f.Pull(t.Context(), PullRequest{Ref: host + "image:2"})
	wantErr(t, err, errdefs.ErrNotFound, "no image for linux/"+runtime.GOARCH)
}

// TestABlobThatCanHaveNoMoreNamesIsCopied: anybody may push artifacts that take all the names a file can have.
func TestABlobThatCanHaveNoMoreNamesIsCopied(t *testing.T) {
	long(t)
	f := newFixture(t)
	f.pushArtifact("a:1", rt.TitledFile("a", "content"))
	f.pull("a:1")
	blobs, err := filepath.Glob(filepath.Join(f.cfg.Root, "layers/*/fs/a"))
	if err != nil || len(blobs) != 1 {
		t.Fatal(blobs, err)
	}
	names := t.TempDir()
	for i := range 65_000 { // of ext4
		if err = os.Link(blobs[0], filepath.Join(names, strconv.Itoa(i))); err != nil {
			break
		}
	}
	t.Log("no more names:", err)
	f.pushArtifact("b:1", rt.TitledFile("b/1", "content"), rt.TitledFile("b/2", "content"))
	got := f.pull("b:1")
	f.wantFiles(got, map[string]string{"b/1": "content", "b/2": "content"})
	for _, name := range []string{"a:1", "b:1"} {
		if err := f.Remove(t.Context(), host+name); err != nil {
			t.Fatal(err)
		}
	}
	f.wantNothing()
}

// TestTheRegistryStandsInForAMirrorThatSpoilsABlobOfAnArtifact: the mirror that sent something else is not asked again,
// and a download that was cut goes on at the registry, which wants credentials.
func TestTheRegistryStandsInForAMirrorThatSpoilsABlobOfAnArtifact(t *testing.T) {
	f := newFixture(t)
	second := newRegistry(t, rt.WithBasicAuth("user", "secret"))
	body := make([]byte, 200<<10)
	rand.New(rand.NewSource(3)).Read(body)
	file := rt.ArtifactFile{Title: "model", Body: body}
	desc := f.pushArtifact("a:1", file)
	if _, err := second.PushArtifact("a", "1", rt.Artifact{Type: modelType, Files: []rt.ArtifactFile{file}}); err != nil {
		t.Fatal(err)
	}
	if err := rt.Mirrors(f.cfg.HostsDir, []string{"registry.test"}, f.reg, second); err != nil {
		t.Fatal(err)
	}
	sum := file.Descriptor().Digest.String()
	auth := &model.Auth{Username: "user", Password: "secret"}
	for name, fault := range map[string]rt.Faults{
		"another content": {Corrupt: sum}, "a cut": {CutAfter: 10 << 10, Path: "/blobs/" + sum},
	} {
		f.reg.ResetRequests()
		second.ResetRequests()
		f.reg.SetFaults(fault)
		if _, err := f.Pull(t.Context(), PullRequest{Ref: host + "a:1"}); err == nil {
			t.Errorf("%s: pulled without credentials", name)
		}
		f.dropLeftovers()
		f.wantNothing()
		f.reg.ResetRequests()
		if _, err := f.Pull(t.Context(), PullRequest{Ref: host + "a:1", Auth: auth}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		f.wantFiles(desc.Digest.String(), map[string]string{"model": string(body)})
		first, other := f.reg.Sent(sum), second.Sent(sum)
		if first == 0 || other == 0 || name == "a cut" && first+other != int64(len(body)) {
			t.Errorf("%s: %d bytes of the mirror and %d of the registry, of %d", name, first, other, len(body))
		}
		if err := f.Remove(t.Context(), host+"a:1"); err != nil {
			t.Fatal(err)
		}
		f.wantNothing()
	}
}

// TestADeepArtifactIsMadeInTime: a manifest of some hundred kilobytes names 63,000 directories. It was seen to take
// half a minute, with each of them looked up from the root.
func TestADeepArtifactIsMadeInTime(t *testing.T) {
	long(t)
	asroot.Need(t, "confined children")
	f := newFixture(t)
	var files []rt.ArtifactFile
	for i := range 500 {
		files = append(files, rt.TitledFile(strconv.Itoa(i)+strings.Repeat("/d", 126)+"/f", strconv.Itoa(i)))
	}
	f.pushArtifact("deep:1", files...)
	if o := f.apart("deep:1"); o.err != fine || o.took > 15*time.Second || o.peak > 150<<20 {
		t.Errorf("the pull took %v and %d MiB: %s", o.took, o.peak>>20, o.err)
	}
}
