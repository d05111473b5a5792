package registry

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// serve answers at host:port, over TLS with a certificate of nobody.
func (w *world) serve(address string, handler http.HandlerFunc) {
	w.Helper()
	server := httptest.NewTLSServer(handler)
	w.Cleanup(server.Close)
	w.foreign(address, server)
	w.configure("skip_verify = true")
}

// servePlain answers at host:port over plain HTTP.
func (w *world) servePlain(address string, handler http.HandlerFunc) {
	w.Helper()
	server := httptest.NewServer(handler)
	w.Cleanup(server.Close)
	w.foreign(address, server)
}

func packedBy(t *testing.T, encoding string, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	var in io.WriteCloser = gzip.NewWriter(&out)
	if encoding == "zstd" {
		var err error
		// A decoder has a window of this size in memory, whatever comes.
		window := zstd.WithWindowSize(zstd.MaxWindowSize)
		if in, err = zstd.NewWriter(&out, window, zstd.WithSingleSegment(false)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := in.Write(data[:1]); err != nil {
		t.Fatal(err)
	}
	if f, ok := in.(interface{ Flush() error }); ok { // or the length would be in the head
		if err := f.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := in.Write(data[1:]); err != nil {
		t.Fatal(err)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestAnEncodedAnswerIsBoundedOrRefused: answers come encoded though they were asked for as they are. Seen to fail with
// the encodings that the library asks for and decodes: it unpacks blobs, keeps a window of half a gigabyte
// for a small manifest, and unpacks as often as a header says.
func TestAnEncodedAnswerIsBoundedOrRefused(t *testing.T) {
	manifest := []byte(`{"schemaVersion":2}`)
	large := bytes.Repeat([]byte(" "), 64<<20)
	twice := packedBy(t, "gzip", packedBy(t, "gzip", manifest))
	for _, c := range []struct {
		name, encoding string
		blob           bool
		is, sent       []byte
		wrong          string // empty: it is read
	}{
		{"a manifest by gzip", "gzip", false, manifest, packedBy(t, "gzip", manifest), ""},
		{"a manifest as it is", "identity", false, manifest, manifest, ""},
		{"a manifest by gzip that is none", "gzip", false, manifest, manifest, "unpack the answer"},
		{"a manifest by gzip that is too large", "gzip", false, manifest, packedBy(t, "gzip", large), "that are not sha256"},
		{"a manifest by zstd", "zstd", false, manifest, packedBy(t, "zstd", manifest), "encodes its answer"},
		{"a manifest by gzip twice", "gzip, gzip", false, manifest, twice, "encodes its answer"},
		{"a blob by gzip", "gzip", true, manifest, packedBy(t, "gzip", manifest), "encodes its answer"},
		{"a blob by zstd", "ZSTD", true, manifest, packedBy(t, "zstd", manifest), "encodes its answer"},
		{"a blob as it is", "Identity", true, manifest, manifest, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			var asked atomic.Value
			w.serve("registry.test:443", func(rw http.ResponseWriter, req *http.Request) {
				asked.Store(req.Header.Get("Accept-Encoding"))
				rw.Header().Set("Content-Encoding", c.encoding)
				_, _ = rw.Write(c.sent)
			})
			repo := w.repository(nil)
			desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(c.is),
				Size: int64(len(c.is))}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			var got []byte
			var err error
			if c.blob {
				desc.MediaType = ocispec.MediaTypeImageLayer
				var blob *Blob
				if blob, err = repo.Blob(t.Context(), desc, nil); err != nil {
					t.Fatal(err)
				}
				defer blob.Close()
				got, err = io.ReadAll(blob)
			} else {
				got, err = repo.Document(t.Context(), desc)
			}
			runtime.ReadMemStats(&after)
			switch {
			case c.wrong == "" && (err != nil || !bytes.Equal(got, c.is)):
				t.Errorf("%q, %v", got, err)
			case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)):
				t.Errorf("error %v, want one with %q", err, c.wrong)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 32<<20 {
				t.Errorf("it took %d MiB of memory", took>>20)
			}
			if asked.Load() != "identity" {
				t.Errorf("asked for the encodings %q", asked.Load())
			}
		})
	}
}

// TestADocumentIsBoundedOnceItIsUnpacked: without a digest in its head, a manifest is read to find out what it has.
func TestADocumentIsBoundedOnceItIsUnpacked(t *testing.T) {
	for name, sent := range map[string][]byte{
		"more than a document has":        packedBy(t, "gzip", bytes.Repeat([]byte(" "), 64<<20)),
		"little, in any number of pieces": bytes.Repeat(packedBy(t, "gzip", []byte(" ")), 1<<18),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.serve("registry.test:443", func(rw http.ResponseWriter, req *http.Request) {
				rw.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
				rw.Header().Set("Content-Encoding", "gzip")
				if req.Method == http.MethodGet {
					_, _ = rw.Write(sent)
				}
			})
			if _, err := w.repository(nil).Resolve(t.Context()); err == nil ||
				!strings.Contains(err.Error(), "has more than 4194304 bytes, the limit that [image] max_document sets") {
				t.Errorf("error %v", err)
			}
		})
	}
}

// TestATokenIsBoundedWhateverItsPath: a host that is asked for a blob names the service. Seen to fail with a token
// service bounded by its path, as other requests are.
func TestATokenIsBoundedWhateverItsPath(t *testing.T) {
	for _, path := range []string{"/token", "/blobs/token", "/moved"} {
		t.Run(path, func(t *testing.T) {
			const most = 64 << 20
			w := newWorld(t)
			var sent atomic.Int64
			w.serve("registry.test:443", func(rw http.ResponseWriter, req *http.Request) {
				switch req.URL.Path {
				case "/moved":
					http.Redirect(rw, req, "/elsewhere", http.StatusTemporaryRedirect)
				case path, "/elsewhere":
					_, err := io.WriteString(rw, `{"token":"`)
					for chunk := strings.Repeat("x", 1<<20); err == nil && sent.Load() < most; {
						_, err = io.WriteString(rw, chunk)
						sent.Add(1 << 20)
					}
				default:
					rw.Header().Set("WWW-Authenticate",
						fmt.Sprintf(`Bearer realm="https://registry.test%s",service="x",scope="repository:a:pull"`, path))
					rw.WriteHeader(http.StatusUnauthorized)
				}
			})
			blob, err := w.repository(nil).Blob(t.Context(), ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer,
				Digest: digest.FromString("x"), Size: 1}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer blob.Close()
			if _, err = blob.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "max_document") {
				t.Errorf("error %v", err)
			}
			if sent.Load() == most {
				t.Errorf("%d MiB of a token were read", sent.Load()>>20)
			}
		})
	}
}

// TestTheHeadOfAnAnswerIsBounded: it is in memory before anybody looks at it. Seen to fail with net/http's own bound,
// at which it took a gigabyte.
func TestTheHeadOfAnAnswerIsBounded(t *testing.T) {
	w := newWorld(t)
	w.serve("registry.test:443", func(rw http.ResponseWriter, _ *http.Request) {
		conn, buf, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = buf.WriteString("HTTP/1.1 200 OK\r\n")
		for i := range 1 << 20 {
			_, _ = fmt.Fprintf(buf, "%x:\r\n", i)
		}
		_, _ = buf.WriteString("Content-Length: 0\r\n\r\n")
		_ = buf.Flush()
	})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := w.repository(nil).Resolve(t.Context())
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "headers exceeded") {
		t.Errorf("error %v", err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
		t.Errorf("it took %d MiB of memory", took>>20)
	}
}

// TestADocumentMayHaveWhatTheConfigurationSays: seen to fail with the library's own bound, 4393216 bytes, beyond which
// a manifest was NotFound, and with errors that named no key of the configuration and were InvalidArgument.
func TestADocumentMayHaveWhatTheConfigurationSays(t *testing.T) {
	manifest := []byte(`{"schemaVersion":2,"annotations":{"a":"` + strings.Repeat("a", 5<<20) + `"}}`)
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(manifest),
		Size: int64(len(manifest))}
	for name, head := range map[string]func(http.Header){
		"with a length and a digest": func(h http.Header) {
			h.Set("Content-Length", fmt.Sprint(len(manifest)))
			h.Set("Docker-Content-Digest", desc.Digest.String())
		},
		"with a length": func(h http.Header) { h.Set("Content-Length", fmt.Sprint(len(manifest))) },
		"with neither":  func(http.Header) {},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.serve("registry.test:443", func(rw http.ResponseWriter, req *http.Request) {
				rw.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
				head(rw.Header())
				if req.Method == http.MethodGet {
					_, _ = rw.Write(manifest)
				}
			})
			for _, limit := range []int64{4 << 20, 6 << 20} {
				w.client.cfg.MaxDocument = limit
				repo := w.repository(nil)
				got, err := repo.Resolve(t.Context())
				data, dataErr := repo.Document(t.Context(), desc)
				if limit > desc.Size {
					if err != nil || dataErr != nil || got.Digest != desc.Digest || !bytes.Equal(data, manifest) {
						t.Errorf("limit %d: %v, %d bytes, errors %v and %v", limit, got, len(data), err, dataErr)
					}
					continue
				}
				for _, err := range []error{err, dataErr} {
					if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "max_document") {
						t.Errorf("limit %d: error %v", limit, err)
					}
				}
			}
		})
	}
}
