package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/registrytest"
)

// lines is a file of text that containers copy to stdout.
type lines struct {
	path  string
	gate  string // a pipe beside it, whose end says that copying may begin
	bytes int64
}

const lastLine = "the-end-of-it"

func makeLines(dir string, mib, width int) (lines, error) {
	dir = filepath.Join(dir, "lines")
	l := lines{path: filepath.Join(dir, "lines"), gate: filepath.Join(dir, "go")}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return l, err
	}
	if err := unix.Mkfifo(l.gate, 0o644); err != nil {
		return l, err
	}
	file, err := os.Create(l.path)
	if err != nil {
		return l, err
	}
	w := bufio.NewWriterSize(file, 1<<20)
	for i := 0; l.bytes < int64(mib)<<20; i++ {
		line := fmt.Appendf(nil, "%d ", i)
		for len(line) < width-1 {
			line = append(line, 'x')
		}
		n, err := w.Write(append(line[:width-1], '\n'))
		if err != nil {
			return l, errors.Join(err, file.Close())
		}
		l.bytes += int64(n)
	}
	if _, err := w.WriteString(lastLine + "\n"); err != nil {
		return l, errors.Join(err, file.Close())
	}
	return l, errors.Join(w.Flush(), file.Close())
}

// logs measures from the start of a container that copies the lines to its stdout to its log's last line.
func (p *peer) logs(ctx context.Context, l lines, r *result) error {
	made, _, err := p.start(ctx, func(c *cri.ContainerConfig) {
		c.Command = []string{"sh", "-c", "cat /lines/go >/dev/null; cat /lines/lines"}
		// It waits at the pipe until it is told to begin, so that its own start is left out.
		c.Mounts = []*cri.Mount{{HostPath: filepath.Dir(l.path), ContainerPath: "/lines", Readonly: true}}
	})
	if err == nil {
		err = p.timeLog(ctx, l, made, r)
	}
	return errors.Join(err, p.remove(ctx, made))
}

func (p *peer) timeLog(ctx context.Context, l lines, made *pod, r *result) error {
	path := filepath.Join(made.config.LogDirectory, "c.log")
	gate := -1
	for began := time.Now(); gate < 0; {
		var err error
		gate, err = unix.Open(l.gate, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		switch {
		case err == nil:
		case !errors.Is(err, unix.ENXIO): // nobody reads yet
			return fmt.Errorf("open %s: %w", l.gate, err)
		case time.Since(began) > time.Minute:
			return errors.New("the container does not begin")
		default:
			if err := sleep(ctx, 5*time.Millisecond); err != nil {
				return err
			}
		}
	}
	began := time.Now()
	if err := unix.Close(gate); err != nil {
		return err
	}
	for {
		done, err := endsWith(path, lastLine+"\n")
		if err != nil {
			return err
		}
		if done {
			break
		}
		if time.Since(began) > 5*time.Minute {
			return errors.New("the last line is not in the log after 5 min")
		}
		if err := sleep(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	r.value(rowLog, float64(l.bytes)/(1<<20)/time.Since(began).Seconds())
	return nil
}

func endsWith(path, text string) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil || size < int64(len(text)) {
		return false, err
	}
	tail := make([]byte, len(text))
	if _, err := file.ReadAt(tail, size-int64(len(text))); err != nil {
		return false, err
	}
	return bytes.Equal(tail, []byte(text)), nil
}

const (
	bigName   = "bench/big:1"
	bigLayers = 9
)

// bigImage has some MiB of gzip in nine layers; unpacked it is about three times as large.
func bigImage(mib int) (v1.Image, error) {
	type packed struct {
		index int
		layer v1.Layer
		err   error
	}
	results := make(chan packed)
	work := make(chan int)
	for range 2 {
		go func() {
			for i := range work {
				tar, err := registrytest.Tar(registrytest.Random(int64(i), fmt.Sprintf("layer%d", i),
					200, int64(mib)*3<<20/bigLayers)...)
				var layer v1.Layer
				if err == nil {
					layer, err = registrytest.NewLayer(tar, registrytest.Gzip, false)
				}
				results <- packed{i, layer, err}
			}
		}()
	}
	go func() {
		for i := range bigLayers {
			work <- i
		}
		close(work)
	}()
	var err error
	options := make([]registrytest.ImageOption, bigLayers)
	for range bigLayers {
		done := <-results
		err = errors.Join(err, done.err)
		if done.err == nil {
			options[done.index] = registrytest.ReadyLayer(done.layer)
		}
	}
	if err != nil {
		return nil, err
	}
	return registrytest.Image(options...)
}

// pull times the pull of an image, which the peer does not have, and removes it again.
func (p *peer) pull(ctx context.Context, registry *registrytest.Registry, name string, image v1.Image, r *result,
	row row) error {
	ref := p.host + "/" + name
	registry.ResetRequests()
	began := time.Now()
	if _, err := p.images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}}); err != nil {
		return err
	}
	took := time.Since(began)
	total, err := sentWhole(registry, image)
	if err != nil {
		return err
	}
	if row.Key == rowPull.Key {
		r.PulledMiB = float64(total) / (1 << 20)
	}
	r.add(row, took)
	if _, err := p.images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: ref}}); err != nil {
		return err
	}
	return sleep(ctx, 2*time.Second) // what goes in the background is not the next peer's burden
}

// sentWhole makes sure that the registry has sent every layer, and adds up their sizes.
func sentWhole(registry *registrytest.Registry, image v1.Image) (total int64, err error) {
	layers, err := image.Layers()
	if err != nil {
		return 0, err
	}
	for _, layer := range layers {
		digest, err := layer.Digest()
		if err != nil {
			return 0, err
		}
		size, err := layer.Size()
		if err != nil {
			return 0, err
		}
		if sent := registry.Sent(digest.String()); sent < size {
			return 0, fmt.Errorf("the peer had layer %s already: %d of %d bytes were sent", digest, sent, size)
		}
		total += size
	}
	return total, nil
}

const oneMissingName = "bench/big:2"

// oneMissing times the pull of an image of which all layers are there but the last: that of the image before,
// and one of its own.
func oneMissing(ctx context.Context, o *options, registry *registrytest.Registry, base v1.Image,
	turns func(int, string, func(*peer) error) error, r *report) error {
	round := int64(0)
	return turns(o.pulls, "pull of one layer", func(p *peer) error {
		round++
		tar, err := registrytest.Tar(registrytest.Random(1000+round, "own", 200, int64(o.pullMiB)*3<<20/bigLayers)...)
		if err != nil {
			return err
		}
		layer, err := registrytest.NewLayer(tar, registrytest.Gzip, false)
		if err != nil {
			return err
		}
		image, err := mutate.AppendLayers(base, layer)
		if err != nil {
			return err
		}
		if err := registry.Push(oneMissingName, image); err != nil {
			return err
		}
		for _, step := range []struct {
			ref  string
			time bool
		}{{bigName, false}, {oneMissingName, true}} {
			began := time.Now()
			if _, err := p.images.PullImage(ctx,
				&cri.PullImageRequest{Image: &cri.ImageSpec{Image: p.host + "/" + step.ref}}); err != nil {
				return err
			}
			if step.time {
				r.of(p).add(rowPullOne, time.Since(began))
			}
		}
		for _, ref := range []string{oneMissingName, bigName} {
			if _, err := p.images.RemoveImage(ctx,
				&cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: p.host + "/" + ref}}); err != nil {
				return err
			}
		}
		return sleep(ctx, 2*time.Second)
	})
}
