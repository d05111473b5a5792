package image

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"berth/internal/model"
	rt "berth/internal/registrytest"
)

// mirror puts a mirror before the registry of the fixture.
func (f *fixture) mirror(url string) {
	f.t.Helper()
	text := fmt.Sprintf("server = %q\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", f.reg.URL(), url)
	if err := os.WriteFile(filepath.Join(f.cfg.HostsDir, "registry.test", "hosts.toml"), []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

// TestAMirrorThatDoesNotAnswerIsWaitedForOnce, and not for each manifest and layer of an image, as in issue 4861 of
// containerd. For this image it was waited for six times.
func TestAMirrorThatDoesNotAnswerIsWaitedForOnce(t *testing.T) {
	long(t)
	f := newFixture(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // connections are made, and nobody takes them
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	var layers []rt.ImageOption
	for i := range 9 {
		layers = append(layers, files(fmt.Sprint("f", i), fmt.Sprint(i)))
	}
	f.push("a:1", layers...)
	f.mirror("http://" + silent.Addr().String())
	began := time.Now()
	f.pull("a:1")
	if took := time.Since(began); took < quick.Stall || took > 2*quick.Stall {
		t.Errorf("the pull took %v, and a request waits for %v", took, quick.Stall)
	}
}

// TestAMirrorThatStopsInTheMiddleIsWaitedForByALayerOnce: other layers are not begun there.
func TestAMirrorThatStopsInTheMiddleIsWaitedForByALayerOnce(t *testing.T) {
	long(t)
	f := newFixture(t)
	mirror := newRegistry(t)
	layers := []rt.ImageOption{}
	for i := range 12 {
		layers = append(layers, rt.Layer(rt.Random(int64(i), fmt.Sprint("d", i), 1, 100<<10)...))
	}
	if err := mirror.Push("a:1", f.push("a:1", layers...)); err != nil {
		t.Fatal(err)
	}
	mirror.SetFaults(rt.Faults{StallAfter: 10 << 10, Path: "/blobs/"})
	f.mirror(mirror.URL())
	began := time.Now()
	f.pull("a:1")
	if took := time.Since(began); took > 2*quick.Stall {
		t.Errorf("the pull took %v, and a connection is waited for for %v", took, quick.Stall)
	}
}

// TestAMirrorThatAnswersWithAPageIsPassedOver: proxies and mirrors have pages for logins and errors that say that all
// is well. The page was taken for the manifest, and for the beginning of a layer that the registry went on with, for
// which both were blamed.
func TestAMirrorThatAnswersWithAPageIsPassedOver(t *testing.T) {
	f := newFixture(t)
	img := f.push("a:1", files("a", "b"), rt.Layer(rt.Random(1, "d", 1, 100<<10)...))
	for name, c := range map[string]struct {
		mediaType, page string
		layersOnly      bool
		chunked         bool
	}{
		"HTML":                      {mediaType: "text/html", page: "<html>log in, please</html>"},
		"JSON":                      {mediaType: "application/json", page: `{"status":"ok"}`},
		"nothing":                   {},
		"HTML in place of layers":   {mediaType: "text/html", page: "<html>log in, please</html>", layersOnly: true},
		"HTML of an unknown length": {mediaType: "text/html", page: "<html>log in, please</html>", chunked: true},
		"nothing, for layers":       {layersOnly: true},
	} {
		t.Run(name, func(t *testing.T) {
			mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if c.layersOnly && filepath.Base(filepath.Dir(req.URL.Path)) != "blobs" {
					http.NotFound(w, req)
					return
				}
				w.Header().Set("Content-Type", c.mediaType)
				if c.chunked {
					w.(http.Flusher).Flush()
				}
				_, _ = io.WriteString(w, c.page)
			}))
			defer mirror.Close()
			f.mirror(mirror.URL)
			if _, err := f.Pull(context.Background(), PullRequest{Ref: host + "a:1"}); err != nil {
				t.Fatal(err)
			}
			if err := f.Remove(context.Background(), id(t, img)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestTokensThatExpireUnsaidAreRenewedForAllLayers that are on their way: each of them has sent the old one.
func TestTokensThatExpireUnsaidAreRenewedForAllLayers(t *testing.T) {
	f := newFixture(t, rt.WithTokenAuth("user", "password", ""), rt.WithTokensFor(4))
	var layers []rt.ImageOption
	for i := range 12 {
		layers = append(layers, rt.Layer(rt.Random(int64(i), fmt.Sprint("d", i), 1, 100<<10)...))
	}
	img := f.push("a:1", layers...)
	for range 5 {
		_, err := f.Pull(context.Background(), PullRequest{Ref: host + "a:1",
			Auth: &model.Auth{Username: "user", Password: "password"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Remove(context.Background(), id(t, img)); err != nil {
			t.Fatal(err)
		}
	}
}
