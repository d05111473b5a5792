package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/asroot"
	rt "berth/internal/registrytest"
)

// packed is a layer as a registry has it.
type packed struct {
	data   []byte
	diffID string
	plain  int64
}

// pack packs what write writes, which never is in memory as a whole.
func pack(t testing.TB, c rt.Compression, write func(w io.Writer) error) packed {
	t.Helper()
	var out bytes.Buffer
	var z io.WriteCloser
	if c == rt.Zstd {
		var err error
		if z, err = zstd.NewWriter(&out); err != nil {
			t.Fatal(err)
		}
	} else {
		z, _ = gzip.NewWriterLevel(&out, gzip.BestSpeed)
	}
	hash := sha256.New()
	n := &counter{}
	buffered := bufio.NewWriterSize(io.MultiWriter(z, hash, n), 1<<20)
	if err := write(buffered); err != nil {
		t.Fatal(err)
	}
	if err := buffered.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return packed{out.Bytes(), fmt.Sprintf("sha256:%x", hash.Sum(nil)), n.n}
}

type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

// entries packs a tar, one entry after the other.
func entries(t testing.TB, write func(w *tar.Writer) error) packed {
	t.Helper()
	return pack(t, rt.Gzip, func(w io.Writer) error {
		tw := tar.NewWriter(w)
		if err := write(tw); err != nil {
			return err
		}
		return tw.Close()
	})
}

// header is an entry without content. Names of any length are allowed.
func header(kind byte, name, link string) *tar.Header {
	return &tar.Header{Typeflag: kind, Name: name, Linkname: link, Mode: 0o755, Format: tar.FormatPAX}
}

// put pushes an image of layers.
func (f *fixture) put(name string, config ocispec.ImageConfig, layers ...packed) {
	f.t.Helper()
	img := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}, Config: config}
	img.RootFS.Type = "layers"
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest}
	m.SchemaVersion = 2
	for _, l := range layers {
		img.RootFS.DiffIDs = append(img.RootFS.DiffIDs, digest.Digest(l.diffID))
		m.Layers = append(m.Layers, ocispec.Descriptor{
			MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.Digest(f.reg.PutBlob(l.data)), Size: int64(len(l.data)),
		})
	}
	raw, err := json.Marshal(img)
	if err != nil {
		f.t.Fatal(err)
	}
	m.Config = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.Digest(f.reg.PutBlob(raw)),
		Size: int64(len(raw))}
	if raw, err = json.Marshal(m); err != nil {
		f.t.Fatal(err)
	}
	f.putManifest(name, m.MediaType, raw)
}

func (f *fixture) putManifest(name, mediaType string, raw []byte) {
	f.t.Helper()
	repo, tag, _ := strings.Cut(name, ":")
	if err := f.reg.PutManifest(repo, tag, mediaType, raw); err != nil {
		f.t.Fatal(err)
	}
}

// outcome is how a process of its own fared with a pull.
type outcome struct {
	err  string
	peak int64         // bytes of memory
	took time.Duration // of processors, also of its children that it has waited for
}

// apart pulls in a process of its own, with a store of its own, and measures it.
func (f *fixture) apart(name string, env ...string) outcome {
	f.t.Helper()
	// In memory: what a disk does with a hundred thousand files is not what is measured.
	root, err := os.MkdirTemp("/dev/shm", "berth-test-")
	if err != nil {
		f.t.Fatal(err)
	}
	defer os.RemoveAll(root)
	cmd := exec.Command("/proc/self/exe")
	// a test that runs into its timeout leaves nothing running
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Env = append(os.Environ(), append(env, "BERTH_TEST_PULL_ROOT="+root, "BERTH_TEST_PULL_HOSTS="+f.cfg.HostsDir,
		"BERTH_TEST_PULL_REF="+host+name, "BERTH_TEST_PULL_PROGRAM="+f.program())...)
	out, err := cmd.Output()
	if err != nil {
		f.t.Fatalf("%v: %s", err, out)
	}
	o := outcome{took: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}
	for line := range strings.Lines(string(out)) {
		if text, ok := strings.CutPrefix(line, "pull ended: "); ok {
			o.err = strings.TrimSpace(text)
		}
		if text, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(text)[0], 10, 64)
			if err != nil {
				f.t.Fatal(err)
			}
			o.peak = kib << 10
		}
	}
	return o
}

const fine = "<nil>"

// TestHostileImagesAreBounded: what a small image asks for is done in proportion, or refused with the key
// of the configuration that bounds it, and takes no more memory than any image. Each case took seconds to hours,
// or gigabytes, without its bound.
//
// These were taken out one at a time, and the case was seen to fail each time: the bounds of entries, of memory
// for directories, of a tar's length, of links that are followed, of lookups, of values and volumes of documents,
// of text for processes, of layers, and of the sums of an image; the limit of names of unsupported attributes;
// and the cut of an error's text. A window of zstd beyond reason was refused without its limit, too.
func TestHostileImagesAreBounded(t *testing.T) {
	asroot.Need(t, "confined children")
	f := newFixture(t)
	for _, c := range []struct {
		name string
		make func(name string)
		want string // in the error; fine: there is none
		peak int64  // MiB
		env  []string
	}{
		{"deep directories", func(name string) { f.put(name, ocispec.ImageConfig{}, deepDirectories(t)) }, fine, 150, nil},
		{"deep directories beyond the bound", func(name string) { f.put(name, ocispec.ImageConfig{}, deepDirectories(t)) },
			"max_layer_entries", 150, []string{"BERTH_TEST_PULL_ENTRIES=20000"}},
		{"deep directories that are implied", func(name string) {
			f.put(name, ocispec.ImageConfig{}, entries(t, func(w *tar.Writer) error {
				for chain := range 30 {
					if err := w.WriteHeader(header(tar.TypeReg, strconv.Itoa(chain)+strings.Repeat("/d", 2000), "")); err != nil {
						return err
					}
				}
				return nil
			}))
		}, fine, 150, nil},
		{"deep directories over deep directories", func(name string) {
			chain := func(mode int64, kind byte, last string) packed {
				return entries(t, func(w *tar.Writer) error {
					for chain := range 12 {
						h := header(kind, strconv.Itoa(chain)+strings.Repeat("/d", 1990)+last, "")
						if err := w.WriteHeader(h); err != nil {
							return err
						}
						if mode != 0 {
							h = header(tar.TypeDir, strconv.Itoa(chain), "")
							h.Mode = mode
							if err := w.WriteHeader(h); err != nil {
								return err
							}
						}
					}
					return nil
				})
			}
			f.put(name, ocispec.ImageConfig{}, chain(0o700, tar.TypeReg, "/f"), chain(0, tar.TypeReg, "/g"))
		}, fine, 120, nil},
		{"more directories than memory", func(name string) {
			f.put(name, ocispec.ImageConfig{}, entries(t, func(w *tar.Writer) error {
				for i := range 400 {
					if err := w.WriteHeader(header(tar.TypeReg, strconv.Itoa(i)+strings.Repeat("/d", 2000), "")); err != nil {
						return err
					}
				}
				return nil
			}))
		}, "max_layer_path_memory", 250, []string{"BERTH_TEST_PULL_PATH_MEMORY=33554432"}},
		{"replaced links", func(name string) { f.put(name, ocispec.ImageConfig{}, replacedLinks(t)) }, fine, 150, nil},
		{"replaced links beyond the bound", func(name string) { f.put(name, ocispec.ImageConfig{}, replacedLinks(t)) },
			"max_layer_entries", 150, []string{"BERTH_TEST_PULL_ENTRIES=45000"}},
		{"one name, a million times", func(name string) {
			f.put(name, ocispec.ImageConfig{}, entries(t, func(w *tar.Writer) error {
				for range 1_000_000 {
					if err := w.WriteHeader(header(tar.TypeReg, "f", "")); err != nil {
						return err
					}
				}
				return nil
			}))
		}, "max_layer_entries", 150, []string{"BERTH_TEST_PULL_ENTRIES=100000"}},
		{"links that lead a long way", func(name string) {
			f.put(name, ocispec.ImageConfig{}, entries(t, func(w *tar.Writer) error {
				for i := range 39 {
					if err := w.WriteHeader(header(tar.TypeSymlink, fmt.Sprintf("l%d", i),
						strings.Repeat("./", 2000)+fmt.Sprintf("l%d", i+1))); err != nil {
						return err
					}
				}
				for i := range 100_000 {
					if err := w.WriteHeader(header(tar.TypeReg, fmt.Sprintf("l0/f%d", i), "")); err != nil {
						return err
					}
				}
				return nil
			}))
		}, "max_layer_entries", 150, []string{"BERTH_TEST_PULL_ENTRIES=1000000"}},
		{"a directory that hides, again and again", func(name string) {
			f.put(name, ocispec.ImageConfig{}, entries(t, func(w *tar.Writer) error {
				for i := range 10_000 {
					if err := w.WriteHeader(header(tar.TypeDir, fmt.Sprintf("d/%d", i), "")); err != nil {
						return err
					}
				}
				for range 10_000 {
					if err := w.WriteHeader(header(tar.TypeReg, "d/.wh..wh..opq", "")); err != nil {
						return err
					}
				}
				return nil
			}))
		}, "max_layer_entries", 150, []string{"BERTH_TEST_PULL_ENTRIES=1000000"}},
		{"forty layers that put things into the directories of each other", func(name string) {
			var layers []packed
			for i := range 40 {
				layers = append(layers, entries(t, func(w *tar.Writer) error {
					for k := range 2 {
						if err := w.WriteHeader(header(tar.TypeReg, strconv.Itoa(k)+strings.Repeat("/d", 1500)+fmt.Sprintf("/f%d", i),
							"")); err != nil {
							return err
						}
					}
					return nil
				}))
			}
			f.put(name, ocispec.ImageConfig{}, layers...)
		}, "max_image_lookups", 150, []string{"BERTH_TEST_PULL_LOOKUPS=30000"}},
		{"extended attributes of no kind", func(name string) {
			f.put(name, ocispec.ImageConfig{}, entries(t, func(w *tar.Writer) error {
				h := header(tar.TypeReg, "f", "")
				for i := range 200 {
					h.PAXRecords = map[string]string{}
					for k := range 3000 {
						h.PAXRecords[fmt.Sprintf("SCHILY.xattr.none.%0200d", i*3000+k)] = ""
					}
					if err := w.WriteHeader(h); err != nil {
						return err
					}
				}
				return nil
			}))
		}, fine, 150, nil},
		{"windows of zstd as large as may be", func(name string) {
			f.put(name, ocispec.ImageConfig{}, zstdWindow(t, 0), zstdWindow(t, 1), zstdWindow(t, 2))
		}, fine, 600, nil},
		{"as many directories as memory allows", func(name string) {
			var layers []packed
			for i := range 3 {
				layers = append(layers, entries(t, func(w *tar.Writer) error {
					for k := range 70_000 {
						if err := w.WriteHeader(header(tar.TypeReg, fmt.Sprintf("%d-%0240d/f", i, k), "")); err != nil {
							return err
						}
					}
					return nil
				}))
			}
			f.put(name, ocispec.ImageConfig{}, layers...)
		}, fine, 600, []string{"BERTH_TEST_PULL_PATH_MEMORY=33554432"}},
		{"names of a megabyte", func(name string) {
			f.put(name, ocispec.ImageConfig{}, entries(t, func(w *tar.Writer) error {
				return w.WriteHeader(header(tar.TypeReg, strings.Repeat("n", 1<<20-100), ""))
			}))
		}, "the name has 1048476 bytes", 150, nil},
		{"extended attributes", func(name string) {
			f.put(name, ocispec.ImageConfig{}, entries(t, func(w *tar.Writer) error {
				h := header(tar.TypeReg, "f", "")
				h.PAXRecords = map[string]string{}
				for i := range 20_000 {
					h.PAXRecords[fmt.Sprintf("SCHILY.xattr.user.%d", i)] = ""
				}
				for range 100 {
					if err := w.WriteHeader(h); err != nil {
						return err
					}
				}
				return nil
			}))
		}, "max_layer_entries", 200, []string{"BERTH_TEST_PULL_ENTRIES=10000"}},
		{"headers without an entry", func(name string) {
			// An extended header says what comes after it; archive/tar reads on until something does.
			f.put(name, ocispec.ImageConfig{}, pack(t, rt.Zstd, func(w io.Writer) error {
				var one bytes.Buffer
				tw := tar.NewWriter(&one)
				if err := tw.WriteHeader(header(tar.TypeReg, strings.Repeat("n", 200), "")); err != nil {
					return err
				}
				if err := tw.Flush(); err != nil {
					return err
				}
				block := bytes.Repeat(one.Bytes()[:1024], 1024)
				for range 512 {
					if _, err := w.Write(block); err != nil {
						return err
					}
				}
				return nil
			}))
		}, "max_layer_bytes", 200, []string{"BERTH_TEST_PULL_BYTES=268435456"}},
		{"zeros", func(name string) {
			f.put(name, ocispec.ImageConfig{}, pack(t, rt.Zstd, func(w io.Writer) error {
				tw := tar.NewWriter(w)
				h := header(tar.TypeReg, "zeros", "")
				h.Size = 2 << 30
				if err := tw.WriteHeader(h); err != nil {
					return err
				}
				block := make([]byte, 1<<20)
				for range h.Size >> 20 {
					if _, err := tw.Write(block); err != nil {
						return err
					}
				}
				return tw.Close()
			}))
		}, "max_layer_bytes", 200, []string{"BERTH_TEST_PULL_BYTES=268435456"}},
		{"zeros behind the end", func(name string) {
			f.put(name, ocispec.ImageConfig{}, pack(t, rt.Zstd, func(w io.Writer) error {
				block := make([]byte, 1<<20)
				for range 1 << 10 {
					if _, err := w.Write(block); err != nil {
						return err
					}
				}
				return nil
			}))
		}, "max_layer_bytes", 200, []string{"BERTH_TEST_PULL_BYTES=268435456"}},
		{"bytes behind the stream", func(name string) {
			l := entries(t, func(w *tar.Writer) error { return w.WriteHeader(header(tar.TypeReg, "f", "")) })
			l.data = append(l.data, bytes.Repeat([]byte{1}, 64<<20)...)
			f.put(name, ocispec.ImageConfig{}, l)
		}, "max_image_bytes", 200, []string{"BERTH_TEST_PULL_IMAGE_BYTES=33554432"}},
		{"an image of many files", func(name string) {
			var layers []packed
			for i := range 4 {
				layers = append(layers, entries(t, func(w *tar.Writer) error {
					for k := range 400 {
						if err := w.WriteHeader(header(tar.TypeReg, fmt.Sprintf("%d-%d", i, k), "")); err != nil {
							return err
						}
					}
					return nil
				}))
			}
			f.put(name, ocispec.ImageConfig{}, layers...)
		}, "max_image_entries", 150, []string{"BERTH_TEST_PULL_IMAGE_ENTRIES=1000"}},
		{"gzip of a million members", func(name string) {
			var one bytes.Buffer
			z := gzip.NewWriter(&one)
			if err := z.Close(); err != nil {
				t.Fatal(err)
			}
			l := entries(t, func(w *tar.Writer) error { return w.WriteHeader(header(tar.TypeReg, "f", "")) })
			l.data = append(bytes.Repeat(one.Bytes(), 1_000_000), l.data...)
			f.put(name, ocispec.ImageConfig{}, l)
		}, fine, 150, nil},
		{"a window of zstd beyond reason", func(name string) {
			// A frame header that asks for a window of 2 GiB.
			f.put(name, ocispec.ImageConfig{}, packed{data: []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x01, 0x00, 0x00},
				diffID: "sha256:" + strings.Repeat("0", 64)})
		}, "window", 150, nil},
		{"ten thousand layers", func(name string) {
			empty := entries(t, func(w *tar.Writer) error { return nil })
			layers := make([]packed, 10_000)
			for i := range layers {
				layers[i] = empty
			}
			f.put(name, ocispec.ImageConfig{}, layers...)
		}, "max_layers", 150, nil},
		{"layers of three bytes", func(name string) {
			f.putManifest(name, ocispec.MediaTypeImageManifest,
				[]byte(`{"schemaVersion":2,"config":{"digest":"sha256:`+strings.Repeat("0", 64)+`"},"layers":[{}`+
					strings.Repeat(`,{}`, 1_390_000)+`]}`))
		}, "max_document_entries", 150, nil},
		{"an index of a hundred thousand", func(name string) {
			f.putManifest(name, ocispec.MediaTypeImageManifest,
				[]byte(`{"schemaVersion":2,"manifests":[{"size":1}`+strings.Repeat(`,{"size":1}`, 100_000)+`]}`))
		}, "max_document_entries", 150, nil},
		{"JSON without a bottom", func(name string) {
			f.putManifest(name, ocispec.MediaTypeImageManifest,
				[]byte(`{"schemaVersion":2,"annotations":`+strings.Repeat(`[`, 4_000_000)+`}`))
		}, "max_document_entries", 150, nil},
		{"a manifest beyond its length", func(name string) {
			f.putManifest(name, ocispec.MediaTypeImageManifest,
				[]byte(`{"schemaVersion":2,"annotations":{"a":"`+strings.Repeat(`a`, 5_000_000)+`"}}`))
		}, "4194304 bytes, the limit that [image] max_document sets", 150, nil},
		{"many volumes", func(name string) {
			c := ocispec.ImageConfig{Volumes: map[string]struct{}{}}
			for i := range 101 {
				c.Volumes[fmt.Sprintf("/v%d", i)] = struct{}{}
			}
			f.put(name, c)
		}, "max_volumes", 150, nil},
		{"a media type of megabytes", func(name string) {
			f.putManifest(name, ocispec.MediaTypeImageManifest,
				[]byte(`{"schemaVersion":2,"config":{"digest":"sha256:`+strings.Repeat("\\u0001", 500_000)+`"},"layers":[]}`))
		}, "…", 250, nil},
		{"an image of entries that leave nothing", func(name string) {
			var layers []packed
			for i := range 3 {
				layers = append(layers, entries(t, func(w *tar.Writer) error {
					if err := w.WriteHeader(header(tar.TypeReg, strconv.Itoa(i), "")); err != nil {
						return err
					}
					for range 400 {
						if err := w.WriteHeader(header(tar.TypeLink, "l", strconv.Itoa(i))); err != nil {
							return err
						}
					}
					return nil
				}))
			}
			f.put(name, ocispec.ImageConfig{}, layers...)
		}, "max_image_entries", 150, []string{"BERTH_TEST_PULL_IMAGE_ENTRIES=1000"}},
		{"an image of holes", func(name string) {
			var layers []packed
			for i := range 3 {
				layers = append(layers, pack(t, rt.Zstd, func(w io.Writer) error {
					tw := tar.NewWriter(w)
					h := header(tar.TypeReg, strconv.Itoa(i), "")
					h.Size = 64 << 20
					if err := tw.WriteHeader(h); err != nil {
						return err
					}
					if _, err := tw.Write(make([]byte, h.Size)); err != nil {
						return err
					}
					return tw.Close()
				}))
			}
			f.put(name, ocispec.ImageConfig{}, layers...)
		}, "max_image_bytes", 200, []string{"BERTH_TEST_PULL_IMAGE_BYTES=134217728"}},
		{"sixty thousand variables", func(name string) {
			c := ocispec.ImageConfig{}
			for i := range 60_000 {
				c.Env = append(c.Env, fmt.Sprintf("V%d=v", i))
			}
			f.put(name, c, entries(t, func(w *tar.Writer) error { return w.WriteHeader(header(tar.TypeReg, "f", "")) }))
		}, "max_config_text", 150, nil},
		{"a user of a megabyte", func(name string) {
			f.put(name, ocispec.ImageConfig{User: strings.Repeat("u", 2<<20)})
		}, "max_config_text", 150, nil},
		{"a hundred thousand labels", func(name string) {
			c := ocispec.ImageConfig{Labels: map[string]string{}}
			for i := range 100_000 {
				c.Labels[strconv.Itoa(i)] = ""
			}
			f.put(name, c)
		}, "max_document_entries", 150, nil},
		// The file system in memory takes any number.
		{"many hard links", func(name string) {
			f.put(name, ocispec.ImageConfig{}, entries(t, func(w *tar.Writer) error {
				if err := w.WriteHeader(header(tar.TypeReg, "f", "")); err != nil {
					return err
				}
				for i := range 70_000 {
					if err := w.WriteHeader(header(tar.TypeLink, fmt.Sprintf("l%d", i), "f")); err != nil {
						return err
					}
				}
				return nil
			}))
		}, fine, 150, nil},
		{"links of lower layers without end", func(name string) {
			lower := entries(t, func(w *tar.Writer) error {
				if err := w.WriteHeader(header(tar.TypeDir, "x"+strings.Repeat("/d", 300), "")); err != nil {
					return err
				}
				for i := range 3000 {
					if err := w.WriteHeader(header(tar.TypeSymlink, fmt.Sprintf("l%d", i),
						"x"+strings.Repeat("/d", 300))); err != nil {
						return err
					}
				}
				return nil
			})
			upper := entries(t, func(w *tar.Writer) error {
				for i := range 3000 {
					if err := w.WriteHeader(header(tar.TypeReg, fmt.Sprintf("l%d/f%d", i, i), "")); err != nil {
						return err
					}
				}
				return nil
			})
			f.put(name, ocispec.ImageConfig{}, lower, upper)
		}, "max_image_lookups", 300, []string{"BERTH_TEST_PULL_LOOKUPS=30000"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			name := strings.ReplaceAll(c.name, " ", "-")
			name = strings.ToLower(strings.ReplaceAll(name, ",", "")) + ":1"
			c.make(name)
			o := f.apart(name, c.env...)
			t.Logf("%s, %d MiB: %.300s", o.took.Round(time.Millisecond), o.peak>>20, o.err)
			if o.err != c.want && (c.want == fine || !strings.Contains(o.err, c.want)) {
				t.Errorf("the pull ended with %q, want %q", o.err, c.want)
			}
			if strings.HasPrefix(c.want, "max_") && !strings.Contains(o.err, "[image] "+c.want+" sets") {
				t.Errorf("error %q", o.err)
			}
			if len(o.err) > 5000 {
				t.Errorf("an error of %d bytes", len(o.err))
			}
			if o.peak > c.peak<<20 {
				t.Errorf("it took %d MiB of memory, more than %d", o.peak>>20, c.peak)
			}
		})
	}
}

// zstdWindow is a layer of zeros, packed with the largest window that is read.
func zstdWindow(t *testing.T, n byte) packed {
	t.Helper()
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out, zstd.WithWindowSize(128<<20), zstd.WithEncoderConcurrency(1),
		zstd.WithSingleSegment(false))
	if err != nil {
		t.Fatal(err)
	}
	hash := sha256.New()
	w := tar.NewWriter(io.MultiWriter(z, hash))
	h := header(tar.TypeReg, fmt.Sprintf("f%d", n), "")
	h.Size = 300 << 20
	if err := w.WriteHeader(h); err != nil {
		t.Fatal(err)
	}
	block := bytes.Repeat([]byte{n + 1}, 1<<20)
	for range h.Size >> 20 {
		if _, err := w.Write(block); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return packed{out.Bytes(), fmt.Sprintf("sha256:%x", hash.Sum(nil)), h.Size}
}

// deepDirectories is a layer of 60,000 directories, up to 2000 deep.
func deepDirectories(t *testing.T) packed {
	return entries(t, func(w *tar.Writer) error {
		for chain := range 30 {
			path := strconv.Itoa(chain)
			for range 2000 {
				if err := w.WriteHeader(header(tar.TypeDir, path, "")); err != nil {
					return err
				}
				path += "/d"
			}
		}
		return nil
	})
}

// replacedLinks is a layer of 20,000 files in directories of their own, and 20,000 links that come twice.
func replacedLinks(t *testing.T) packed {
	return entries(t, func(w *tar.Writer) error {
		for i := range 20_000 {
			if err := w.WriteHeader(header(tar.TypeReg, fmt.Sprintf("d%d/f", i), "")); err != nil {
				return err
			}
		}
		for range 2 {
			for i := range 20_000 {
				if err := w.WriteHeader(header(tar.TypeSymlink, fmt.Sprintf("l%d", i), "d0")); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// TestAnArchiveOfManyLongDocumentsIsRefused: each image of it would keep its own in memory; a thousand took gigabytes.
func TestAnArchiveOfManyLongDocumentsIsRefused(t *testing.T) {
	long(t)
	f := newFixture(t)
	img := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}}
	img.RootFS.Type = "layers"
	img.Config.Labels = map[string]string{"long": strings.Repeat("x", 1000<<10)} // a little below max_config_text
	config, err := json.Marshal(img)
	if err != nil {
		t.Fatal(err)
	}
	list := strings.TrimSuffix(strings.Repeat(`{"Config":"c.json","Layers":[]},`, 1000), ",")
	data := archiveOf(t, archivePart{"c.json", string(config)}, archivePart{"manifest.json", "[" + list + "]"})
	_, err = f.ImportArchive(t.Context(), bytes.NewReader(data))
	wantErr(t, err, errdefs.ErrResourceExhausted, "max_layer_path_memory")
	f.wantNothing()
}
