package stats

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"berth/internal/model"
)

const (
	// firstMeasure is how long a reading may wait for the first figure of a layer; a container just made has an empty one.
	firstMeasure = 5 * time.Millisecond
	// share is the part of time that may go into one layer's measurement: 1/share. A measurement of many seconds takes a
	// larger part, so that no more than oldest passes until the next one: a kubelet learns from the figure that a
	// container has used up its ephemeral storage. The number of measurers is what bounds the time of all layers then.
	share  = 100
	oldest = 2 * time.Minute
	// measurers is how many layers are measured at once in the background.
	measurers = 2
)

// layer sees to the figure of a writable layer: the first one at once if that is cheap, later ones in the background.
func (s *Sampler) layer(e *entry) {
	e.mu.Lock()
	dir, first := e.layerDir, e.layer == nil
	due := dir != "" && !e.measuring && !e.final && s.config.Measure != nil && !time.Now().Before(e.layerNext)
	if due {
		e.measuring = true
	}
	e.mu.Unlock()
	if !due {
		return
	}
	if first {
		ctx, cancel := context.WithTimeout(s.ctx, firstMeasure)
		err := s.measure(ctx, e, dir, false)
		cancel()
		if err == nil || !errors.Is(err, context.DeadlineExceeded) {
			return
		}
		e.mu.Lock()
		e.measuring = true
		e.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, e)
	if s.runners < measurers && s.ctx.Err() == nil {
		s.runners++
		s.wait.Add(1)
		go s.run()
	}
}

// run measures what is in the queue and ends when that is empty.
func (s *Sampler) run() {
	defer s.wait.Done()
	for {
		s.mu.Lock()
		if len(s.queue) == 0 || s.ctx.Err() != nil {
			s.queue = nil
			s.runners--
			s.mu.Unlock()
			return
		}
		e := s.queue[0]
		s.queue = s.queue[1:]
		s.mu.Unlock()

		e.mu.Lock()
		dir := e.layerDir
		e.mu.Unlock()
		ctx, cancel := context.WithTimeout(s.ctx, s.config.MaxMeasure)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = s.measure(ctx, e, dir, true) // measure says when to try again
		}()
		select {
		case <-done:
		case <-ctx.Done():
			// A measurement sees the end of ctx within some files. One that does not hangs in its file system; its
			// entry stays marked as being measured, and is not tried again until it comes back.
			select {
			case <-done:
			case <-time.After(time.Second):
				s.config.Logger.Warn("a writable layer does not answer", "directory", dir)
			}
		}
		cancel()
	}
}

// measure measures a layer, stores the figure, and decides when the layer is due again. last: it is not tried again at
// once if ctx ends before. Then what was counted is taken for the figure: a container could otherwise have so many
// files that its layer is never measured, and fill the disk.
func (s *Sampler) measure(ctx context.Context, e *entry, dir string, last bool) error {
	e.mu.Lock()
	ended := e.ended
	e.mu.Unlock()
	start := time.Now()
	bytes, inodes, err := s.config.Measure(ctx, dir)
	cost := time.Since(start)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.measuring = false
	e.layerNext = time.Now().Add(max(s.config.LayerAge, min(share*cost, oldest)))
	isPart := last && errors.Is(err, context.DeadlineExceeded)
	if err != nil && (!isPart || e.layer != nil && e.layer.UsedBytes >= bytes) {
		return err
	}
	mountpoint := s.config.Mountpoint
	if mountpoint == "" {
		mountpoint = filepath.Dir(dir)
	}
	e.final = ended && !isPart
	e.layer = &model.FilesystemUsage{At: start, Mountpoint: mountpoint, UsedBytes: bytes, InodesUsed: inodes}
	return err
}
