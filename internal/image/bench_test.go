package image

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/internal/image/ranges"
	rt "berth/internal/registrytest"
)

// BenchmarkPull pulls an image of nine gzip layers, 340 MiB packed, from loopback; BenchmarkPullWithCurl does what can
// be done without a runtime: curl, gzip and tar, four layers at a time.
func benchImage(b *testing.B) (*rt.Registry, v1.Image) {
	b.Helper()
	reg := newRegistry(b)
	var opts []rt.ImageOption
	for i := range 9 {
		size := int64(48<<20) << (i % 3)
		opts = append(opts,
			rt.Layer(append(rt.Random(int64(i), fmt.Sprintf("layer%d", i), 300<<(i%3), size), manySmall(i)...)...))
	}
	img := mustImage(b, opts...)
	if err := reg.Push("bench:1", img); err != nil {
		b.Fatal(err)
	}
	return reg, img
}

func manySmall(i int) []rt.Entry {
	var out []rt.Entry
	for k := range 1000 {
		out = append(out, rt.File(fmt.Sprintf("layer%d/small-%d", i, k), 0o644, fmt.Sprint(k)))
	}
	return out
}

func packedSize(b *testing.B, img v1.Image) int64 {
	b.Helper()
	layers, _ := img.Layers()
	var n int64
	for _, l := range layers {
		size, _ := l.Size()
		n += size
	}
	return n
}

func BenchmarkPull(b *testing.B) {
	reg, img := benchImage(b)
	for _, connections := range []int{1, ranges.Default.Connections} {
		b.Run(fmt.Sprintf("connections=%d", connections), func(b *testing.B) {
			benchPull(b, reg, img, ranges.Settings{Connections: connections})
		})
	}
}

// BenchmarkPullSmallLayers pulls forty layers of one file each: what it takes to begin a layer.
func BenchmarkPullSmallLayers(b *testing.B) {
	reg := newRegistry(b)
	var opts []rt.ImageOption
	for i := range 40 {
		opts = append(opts, files(fmt.Sprintf("file%d", i), "small"))
	}
	img := mustImage(b, opts...)
	if err := reg.Push("bench:1", img); err != nil {
		b.Fatal(err)
	}
	benchPull(b, reg, img, ranges.Settings{})
}

func benchPull(b *testing.B, reg *rt.Registry, img v1.Image, r ranges.Settings) {
	b.Helper()
	b.SetBytes(packedSize(b, img))
	var used time.Duration
	for b.Loop() {
		b.StopTimer()
		s, err := Open(context.Background(),
			Config{
				Settings: Settings{Ranges: r}, Children: testChildren(b), Root: b.TempDir(),
				Logger: slog.New(slog.DiscardHandler),
			})
		if err != nil {
			b.Fatal(err)
		}
		used -= processorTime(b)
		b.StartTimer()
		if _, err := s.Pull(context.Background(), PullRequest{Ref: reg.Addr() + "/bench:1"}); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		used += processorTime(b)
		if err := s.Remove(context.Background(), reg.Addr()+"/bench:1"); err != nil {
			b.Fatal(err)
		}
		s.Close()
		b.StartTimer()
	}
	b.ReportMetric(used.Seconds()/float64(b.N), "cpu-s/op")
}

// processorTime is what this process, registry and store, and its children have used. On a machine that does other
// things as well it says more than the time that passes.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var sum int64
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var r unix.Rusage
		if err := unix.Getrusage(who, &r); err != nil {
			b.Fatal(err)
		}
		sum += r.Utime.Nano() + r.Stime.Nano()
	}
	return time.Duration(sum)
}

func BenchmarkPullWithCurl(b *testing.B) {
	reg, img := benchImage(b)
	b.SetBytes(packedSize(b, img))
	layers, _ := img.Layers()
	for b.Loop() {
		dir := b.TempDir()
		var wg sync.WaitGroup
		turn := make(chan struct{}, 4)
		for i, l := range layers {
			at := filepath.Join(dir, fmt.Sprint(i))
			if err := os.Mkdir(at, 0o755); err != nil {
				b.Fatal(err)
			}
			wg.Go(func() {
				turn <- struct{}{}
				defer func() { <-turn }()
				cmd := fmt.Sprintf("curl -sf %s/v2/bench/blobs/%s | gzip -dc | tar -x -C %s", reg.URL(), digestOf(b, l), at)
				if out, err := exec.Command("sh", "-c", cmd).CombinedOutput(); err != nil {
					b.Errorf("%v: %s", err, out)
				}
			})
		}
		wg.Wait()
		b.StopTimer()
		os.RemoveAll(dir)
		b.StartTimer()
	}
}
