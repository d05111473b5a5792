package security

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/types"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/image"
	"berth/internal/jail/jailtest"
	rt "berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// Attacks of a registry by what it says of its images.

// parts are a sound image in a registry, and the descriptors that its manifest is made of.
type parts struct {
	registry *rt.Registry
	host     string
	manifest map[string]any
	config   map[string]any // the descriptor
	layer    map[string]any
}

func soundParts(t *testing.T, n *node.Node, options ...rt.Option) *parts {
	t.Helper()
	p := &parts{}
	p.registry, p.host = registry(t, n, options...)
	made, err := rt.Image(rt.Layer(rt.File("who", 0o644, p.host)))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.registry.Push("x:sound", made); err != nil {
		t.Fatal(err)
	}
	raw, err := made.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &p.manifest); err != nil {
		t.Fatal(err)
	}
	p.config = p.manifest["config"].(map[string]any)
	p.layer = p.manifest["layers"].([]any)[0].(map[string]any)
	return p
}

// put stores any document under a tag, as a manifest of a media type.
func (p *parts) put(t *testing.T, tag string, mediaType types.MediaType, doc any) {
	t.Helper()
	raw, ok := doc.([]byte)
	if !ok {
		var err error
		if raw, err = json.Marshal(doc); err != nil {
			t.Fatal(err)
		}
	}
	p.registry.PutRaw("x", tag, string(mediaType), raw)
}

// with is a JSON object with some fields otherwise.
func with(object map[string]any, fields ...any) map[string]any {
	out := map[string]any{}
	for key, value := range object {
		out[key] = value
	}
	for i := 0; i < len(fields); i += 2 {
		if key := fields[i].(string); fields[i+1] == nil {
			delete(out, key)
		} else {
			out[key] = fields[i+1]
		}
	}
	return out
}

// CVE-2021-21285 (Docker): a manifest that was no sound one made dockerd panic while it pulled.
//
// Seen to fail with the check of an empty list of diff IDs turned into a read of its first element, in describeConfig
// of image/source/describe.go.
func TestCVE_2021_21285_AManifestCrashesTheDaemon(t *testing.T) {
	n := nodetest.Shared(t)
	same := alive(t, n)
	p := soundParts(t, n)
	configOf := func(config string) map[string]any {
		digest := p.registry.PutBlob([]byte(config))
		return map[string]any{"mediaType": types.OCIConfigJSON, "digest": digest, "size": len(config)}
	}
	deep := strings.Repeat(`{"manifests":[`, 100_000)
	for claim, doc := range map[string]any{
		"null":                 []byte("null"),
		"a list":               []byte("[]"),
		"a number":             []byte("1e999999"),
		"no JSON":              []byte("{"),
		"nothing":              []byte(""),
		"deep":                 []byte(deep),
		"an empty object":      map[string]any{},
		"no config":            with(p.manifest, "config", nil),
		"a config of null":     with(p.manifest, "config", json.RawMessage("null")),
		"layers of null":       with(p.manifest, "layers", json.RawMessage("null")),
		"layers of nulls":      with(p.manifest, "layers", json.RawMessage("[null]")),
		"no layers":            with(p.manifest, "layers", []any{}),
		"more layers":          with(p.manifest, "layers", []any{p.layer, p.layer, p.layer}),
		"a negative size":      with(p.manifest, "layers", []any{with(p.layer, "size", -1)}),
		"a huge size":          with(p.manifest, "layers", []any{with(p.layer, "size", int64(1)<<62)}),
		"a config of nothing":  with(p.manifest, "config", configOf("")),
		"a config of a null":   with(p.manifest, "config", configOf("null")),
		"a config of a list":   with(p.manifest, "config", configOf("[]")),
		"no diff IDs":          with(p.manifest, "config", configOf(`{"rootfs":{"type":"layers","diff_ids":[]}}`)),
		"diff IDs of null":     with(p.manifest, "config", configOf(`{"rootfs":{"type":"layers","diff_ids":[null]}}`)),
		"a diff ID that is no": with(p.manifest, "config", configOf(`{"rootfs":{"type":"layers","diff_ids":["x"]}}`)),
		"an odd platform": with(p.manifest, "config", configOf(fmt.Sprintf(`{"os":"linux","architecture":"%s",
			"variant":"v999999999999999999999999","rootfs":{"type":"layers","diff_ids":["x"]}}`, runtime.GOARCH))),
		"an index of null":  map[string]any{"schemaVersion": 2, "manifests": json.RawMessage("null")},
		"an index of nulls": map[string]any{"schemaVersion": 2, "manifests": json.RawMessage("[null,null]")},
		"an index of none":  map[string]any{"schemaVersion": 2, "manifests": []any{}},
		"schema 1": map[string]any{"schemaVersion": 1, "fsLayers": []any{map[string]any{"blobSum": "x"}},
			"history": []any{}},
		"its annotations": with(p.manifest,
			"annotations", json.RawMessage(`{"":null,"a":"`+strings.Repeat("b", 1<<20)+`"}`)),
	} {
		t.Run(claim, func(t *testing.T) {
			for _, mediaType := range []types.MediaType{types.OCIManifestSchema1, types.OCIImageIndex,
				types.DockerManifestSchema1Signed, ""} {
				p.put(t, "broken", mediaType, doc)
				if err := pull(t, n, p.host+"/x:broken", nil); err != nil {
					nodetest.WantCode(t, err, codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition,
						codes.ResourceExhausted, codes.Unavailable)
				}
				same()
			}
		})
	}
}

// CVE-2026-95839 (containerd): an index whose entry has the annotation of a manifest's subject and a digest
// that is none made containerd panic at each pull.
//
// Seen to fail with a digest taken apart before it is checked, in choose of image/source/describe.go.
func TestCVE_2026_95839_ADigestThatIsNoneCrashesTheDaemon(t *testing.T) {
	n := nodetest.Shared(t)
	same := alive(t, n)
	p := soundParts(t, n)
	for i, digest := range odd {
		entry := map[string]any{"mediaType": types.OCIManifestSchema1, "size": 100, "digest": digest,
			"annotations": map[string]string{
				"io.containerd.manifest.subject": digest, "org.opencontainers.image.ref.name": digest,
				"vnd.docker.reference.digest": digest,
			}}
		for _, platform := range []any{nil, map[string]string{"os": "linux", "architecture": runtime.GOARCH}} {
			tag := fmt.Sprintf("odd%d", i)
			p.put(t, tag, types.OCIImageIndex, map[string]any{
				"schemaVersion": 2, "mediaType": types.OCIImageIndex, "manifests": []any{with(entry, "platform", platform)},
				"subject": entry,
			})
			nodetest.WantCode(t, pull(t, n, p.host+"/x:"+tag, nil), codes.InvalidArgument, codes.NotFound)
			same()
		}
	}
}

// odd are digests that are none.
var odd = []string{
	"", ":", "sha256", "sha256:", "sha256:x", ":" + strings.Repeat("a", 64), "sha256:" + strings.Repeat("A", 64),
	"sha256:../../../../../../etc/passwd", "../../../../etc/passwd:x", "sha256:" + strings.Repeat("a", 63) + "/",
	"sha256:" + strings.Repeat("a", 32) + "/../../y/manifests/" + strings.Repeat("a", 10),
	"md5:" + strings.Repeat("a", 32),
	"sha256:" + strings.Repeat("a", 64) + "\x00", "sha256:?x=" + strings.Repeat("a", 61),
	"sha256:" + strings.Repeat("a", 100_000),
}

// CVE-2024-3727 (containers/image, and so podman and CRI-O): digests of a manifest were used without being checked, in
// requests to the registry, which carry credentials, and in names of files.
//
// Seen to fail with the check of digests taken out of Document in image/registry/client.go and of checkLayer
// in image/source/describe.go.
func TestCVE_2024_3727_DigestsLeadElsewhere(t *testing.T) {
	n := nodetest.Shared(t)
	p := soundParts(t, n, rt.WithBasicAuth("user", "password"))
	auth := &cri.AuthConfig{Username: "user", Password: "password"}
	for i, digest := range odd {
		for part, doc := range map[string]map[string]any{
			"config": with(p.manifest, "config", with(p.config, "digest", digest)),
			"layer":  with(p.manifest, "layers", []any{with(p.layer, "digest", digest)}),
			"manifest": {"schemaVersion": 2,
				"manifests": []any{map[string]any{"mediaType": types.OCIManifestSchema1, "digest": digest, "size": 100}}},
		} {
			tag := fmt.Sprintf("%s%d", part, i)
			p.put(t, tag, types.OCIManifestSchema1, doc)
			p.registry.ResetRequests()
			err := pull(t, n, p.host+"/x:"+tag, auth)
			if err == nil {
				t.Errorf("a %s with the digest %.80q is pulled", part, digest)
			}
			for _, r := range p.registry.Requests() {
				if strings.Contains(r.Path, "..") || strings.Contains(r.Path, "/y/") || strings.Contains(r.Path, "passwd") {
					t.Errorf("the digest %.80q of a %s leads to a request of %s", digest, part, r.Path)
				}
			}
		}
	}
	left, err := filepath.Glob(filepath.Join(n.Root, "images", "**", "*passwd*"))
	if err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// CVE-2021-41190 (OCI, and so containerd and Docker): a document that is a manifest and an index at once was the one or
// the other depending on who read it, or on the registry's word for it, so that what one had checked another one ran.
//
// Seen to fail with the refusal of documents that are both taken out of Describe in image/source/describe.go,
// and with the registry's media type deciding in place of the document's content.
func TestCVE_2021_41190_AManifestThatIsAnIndexToo(t *testing.T) {
	n := nodetest.Shared(t)
	p := soundParts(t, n)
	index := []any{map[string]any{
		"mediaType": types.OCIManifestSchema1, "digest": p.config["digest"], "size": p.config["size"],
		"platform": map[string]string{"os": "linux", "architecture": runtime.GOARCH},
	}}
	for claim, doc := range map[string]map[string]any{
		"layers and manifests":           with(p.manifest, "manifests", index, "config", nil),
		"a config and manifests":         with(p.manifest, "manifests", index, "layers", nil),
		"all of them":                    with(p.manifest, "manifests", index),
		"and says that it is an index":   with(p.manifest, "manifests", index, "mediaType", types.OCIImageIndex),
		"and does not say what it is":    with(p.manifest, "manifests", index, "mediaType", nil),
		"an empty list, and a manifest":  with(p.manifest, "manifests", []any{}),
		"empty layers, and an index":     {"schemaVersion": 2, "manifests": index, "layers": []any{}},
		"layers of schema 1, and itself": with(p.manifest, "fsLayers", []any{}),
	} {
		t.Run(claim, func(t *testing.T) {
			for _, mediaType := range []types.MediaType{types.OCIManifestSchema1, types.OCIImageIndex,
				types.DockerManifestList} {
				p.put(t, "both", mediaType, doc)
				nodetest.WantCode(t, pull(t, n, p.host+"/x:both", nil), codes.InvalidArgument)
			}
		})
	}
	t.Run("the registry's word", func(t *testing.T) {
		// One document, which is a manifest: what a registry calls it changes nothing.
		var ids []string
		for _, mediaType := range []types.MediaType{types.OCIManifestSchema1, types.OCIImageIndex,
			types.DockerManifestList, "text/plain"} {
			p.put(t, "word", mediaType, p.manifest)
			if err := pull(t, n, p.host+"/x:word", nil); err != nil {
				nodetest.WantCode(t, err, codes.InvalidArgument, codes.NotFound)
				continue
			}
			s, err := n.Images.ImageStatus(nodetest.Context(t),
				&cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: p.host + "/x:word"}})
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, s.GetImage().GetId())
		}
		if slices.Sort(ids); len(slices.Compact(ids)) != 1 {
			t.Errorf("one document is the images %v", ids)
		}
	})
}

// CVE-2020-1702 (containers/image, and so podman and CRI-O): a registry could send a manifest of any size,
// which was held in memory.
//
// Seen to fail with the limits taken out of Document in image/registry/client.go, for the configuration, and of
// transport.RoundTrip, for the token.
func TestCVE_2020_1702_ADocumentOfAnySize(t *testing.T) {
	n := nodetest.Shared(t)
	const size = 256 << 20
	small := func(t *testing.T, ref string) {
		t.Helper()
		berthd, _ := peak(t, n, func() {
			if err := pull(t, n, ref, kinds["password"]); err == nil {
				t.Error("it is pulled")
			}
		})
		if berthd > 64<<20 {
			t.Errorf("berthd took %d MiB", berthd>>20)
		}
	}
	t.Run("manifest", func(t *testing.T) {
		p := soundParts(t, n)
		p.registry.SetFaults(rt.Faults{ManifestSize: size})
		small(t, p.host+"/x:sound")
	})
	t.Run("configuration", func(t *testing.T) {
		p := soundParts(t, n)
		digest := p.registry.PutBlob(bytes.Repeat([]byte(" "), size))
		p.put(t, "large", types.OCIManifestSchema1,
			with(p.manifest, "config", with(p.config, "digest", digest, "size", size)))
		small(t, p.host+"/x:large")
	})
	t.Run("token", func(t *testing.T) {
		server, host := serve(t, n, true, nil)
		server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/token" {
				w.Header().Set("WWW-Authenticate",
					fmt.Sprintf(`Bearer realm="%s/token",service="x",scope="repository:x:pull"`, server.URL))
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			_, err := io.WriteString(w, `{"token":"`)
			for chunk := strings.Repeat("x", 1<<20); err == nil; {
				_, err = io.WriteString(w, chunk)
			}
		})
		small(t, host+"/x:1")
	})
}

// GO-2026-6597 (containerd): an index of indexes, each of which lists the same ones many times, made a small image
// a graph of millions of manifests, all of which were looked at.
//
// Seen to fail with the depth's limit taken out of Describe in image/source/describe.go, for the index that holds
// itself, and with every entry read in place of the one that fits.
func TestGO_2026_6597_IndexesOfIndexes(t *testing.T) {
	n := nodetest.Shared(t)
	p := soundParts(t, n)
	raw, err := json.Marshal(p.manifest)
	if err != nil {
		t.Fatal(err)
	}
	child, mediaType := raw, types.OCIManifestSchema1
	for level := range 6 {
		digest := p.registry.PutBlob(child)
		p.put(t, digest, mediaType, child)
		entries := make([]any, 2000)
		for i := range entries {
			entries[i] = map[string]any{"mediaType": mediaType, "digest": digest, "size": len(child),
				"platform": map[string]string{"os": "linux", "architecture": runtime.GOARCH}}
		}
		mediaType = types.OCIImageIndex
		if child, err = json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": mediaType,
			"manifests": entries}); err != nil {
			t.Fatal(err)
		}
		tag := fmt.Sprintf("level%d", level)
		p.put(t, tag, mediaType, child)
		p.registry.ResetRequests()
		if err := pull(t, n, p.host+"/x:"+tag, nil); err != nil {
			nodetest.WantCode(t, err, codes.InvalidArgument)
		} else if level > 3 {
			t.Errorf("%d indexes within each other are pulled", level+1)
		}
		if got := len(p.registry.Requests()); got > 20 {
			t.Errorf("%d indexes within each other make %d requests", level+1, got)
		}
	}
}

// CVE-2026-111361 (podman): an image could get past the check of its digest.
//
// Seen to fail with the comparison of digests taken out of Document in image/registry/client.go (manifest
// and configuration), and out of unpack in image/stream.go (layer).
func TestCVE_2026_111361_SomethingElseThanItsDigest(t *testing.T) {
	n := nodetest.Shared(t)
	evil, err := rt.Image(rt.Layer(rt.File("who", 0o644, "evil")))
	if err != nil {
		t.Fatal(err)
	}
	evilManifest, err := evil.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	digestOf := func(p *parts) string {
		s, err := json.Marshal(p.manifest)
		if err != nil {
			t.Fatal(err)
		}
		return p.registry.PutBlob(s)
	}
	t.Run("manifest", func(t *testing.T) {
		p := soundParts(t, n)
		if err := p.registry.Push("x:evil", evil); err != nil {
			t.Fatal(err)
		}
		digest := digestOf(p)
		p.put(t, digest, types.OCIManifestSchema1, evilManifest)
		if err := pull(t, n, p.host+"/x@"+digest, nil); err == nil {
			t.Error("another manifest than that of the digest is pulled")
		}
	})
	for _, part := range []string{"config", "layer"} {
		t.Run(part, func(t *testing.T) {
			p := soundParts(t, n)
			digest := map[string]any{"config": p.config, "layer": p.layer}[part].(map[string]any)["digest"].(string)
			p.registry.SetFaults(rt.Faults{Corrupt: digest})
			if err := pull(t, n, p.host+"/x:sound", nil); err == nil {
				t.Errorf("another %s than that of the digest is pulled", part)
			}
		})
	}
	t.Run("diff ID", func(t *testing.T) {
		// The layer is what its digest says, and not what the configuration, which others have signed, says.
		p := soundParts(t, n)
		layers, err := evil.Layers()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.registry.Push("x:evil", evil); err != nil {
			t.Fatal(err)
		}
		digest, size := must(layers[0].Digest()), must(layers[0].Size())
		p.put(t, "other", types.OCIManifestSchema1,
			with(p.manifest, "layers", []any{with(p.layer, "digest", digest.String(), "size", size)}))
		if err := pull(t, n, p.host+"/x:other", nil); err == nil {
			t.Error("another layer than that of the diff ID is pulled")
		}
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// CVE-2023-25153 (containerd): documents of an archive of images that is imported were read whole, whatever their size.
//
// Seen to fail with the limit taken out of document in image/archive.go.
func TestCVE_2023_25153_AnArchiveWithAHugeDocument(t *testing.T) {
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
	const size = 256 << 20
	for _, document := range []string{"index.json", "manifest.json", "oci-layout"} {
		t.Run(document, func(t *testing.T) {
			r, w := io.Pipe()
			go func() {
				tw := tar.NewWriter(w)
				err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: document, Size: size, Mode: 0o644})
				for chunk := bytes.Repeat([]byte(" "), 1<<20); err == nil; {
					if _, err = tw.Write(chunk); err != nil {
						break
					}
				}
				_ = tw.Close()
				w.Close()
			}()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := store.ImportArchive(context.Background(), r)
			runtime.ReadMemStats(&after)
			r.Close()
			if err == nil {
				t.Error("it is imported")
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > size/4 {
				t.Errorf("%d MiB of memory were taken for it", took>>20)
			}
		})
	}
}
