package image

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/disk"
	"berth/internal/image/encryption"
	"berth/internal/image/layertar"
	"berth/internal/image/progress"
	"berth/internal/metrics"
	"berth/internal/model"
)

// job downloads and unpacks one layer for all pulls that need it. It continues as long as one of them waits.
type job struct {
	jobKey
	from     packedLayer // of the pull that came first
	now      *inForce    // the settings of the same pull
	done     chan struct{}
	loaded   atomic.Int64 // bytes of the compressed layer that have been read
	waiters  int          // guarded by index.mu
	finished bool         // guarded by index.mu: layer and err are final, and the layer has the waiters' references
	cancel   context.CancelFunc
	layer    *layer // set before done is closed, with a reference for each waiter
	err      error
}

// packedLayer is a layer as it comes.
type packedLayer struct {
	desc   ocispec.Descriptor
	fetch  fetcher
	secret *encryption.Secret // what decrypts it; nil: it is not encrypted
}

// jobKey says which pulls share a job: those of the same blob from the same registry. What a layer unpacks to, which
// anybody may write into an image's configuration, is not enough: pulls of a layer that many images have would wait for
// a registry of somebody else, which sends it as slowly as it likes.
type jobKey struct {
	diffID   digest.Digest // of a blob of an artifact: its digest
	blob     digest.Digest
	registry string // empty: an archive
	raw      bool   // a blob of an artifact, which is kept as it is
}

// layer gets a layer and takes a reference to it, which the caller has to release. If the registry is not empty, the
// metrics count where the layer came from.
func (s *Store) layer(
	ctx context.Context, now *inForce, key jobKey, from packedLayer, b *progress.Bar,
) (*layer, error) {
	count := func(source metrics.LayerSource) {
		if key.registry != "" {
			s.cfg.Metrics.Layer(source)
		}
	}
	for {
		s.index.mu.Lock()
		if s.index.closed {
			s.index.mu.Unlock()
			return nil, errClosed
		}
		if l := s.index.layers[key.keyOf()]; l != nil {
			l.refs++
			s.index.mu.Unlock()
			b.Set(model.PullPresent)
			count(metrics.LayerStored)
			return l, nil
		}
		j := s.index.jobs[key]
		mine := j == nil
		if mine {
			var jobCtx context.Context
			j = &job{jobKey: key, from: from, now: now, done: make(chan struct{})}
			jobCtx, j.cancel = context.WithCancel(s.ctx)
			s.index.jobs[key] = j
			s.work.Go(func() { s.run(jobCtx, j) })
		}
		j.waiters++
		s.index.mu.Unlock()
		b.Follow(&j.loaded)
		b.Set(model.PullLoading)

		select {
		case <-j.done:
		case <-ctx.Done():
			return nil, s.leave(j, context.Cause(ctx))
		}
		if j.err == nil {
			b.Set(model.PullDone)
			if mine {
				count(metrics.LayerPulled)
			} else {
				count(metrics.LayerShared)
			}
			return j.layer, nil
		}
		// The job failed with the credentials or the registry of another pull. This pull tries its own.
		if mine || ctx.Err() != nil {
			return nil, j.err
		}
	}
}

// leave stops waiting for a job. The last pull that leaves ends the job.
func (s *Store) leave(j *job, cause error) error {
	s.index.mu.Lock()
	j.waiters--
	last := j.waiters == 0
	var unused []*layer
	switch {
	case j.finished && j.layer != nil:
		unused = s.index.unref(j.layer)
	case !j.finished && last && s.index.jobs[j.jobKey] == j:
		delete(s.index.jobs, j.jobKey) // the next pull starts a new job
	}
	s.index.mu.Unlock()
	if last {
		j.cancel()
		<-j.done // a failed pull returns only when the job's files are removed
	}
	if err := s.removeLayers(context.Background(), unused); err != nil {
		s.log.Warn("leftover of a pull is still there", "error", err)
	}
	return cause
}

// run is a job's goroutine.
func (s *Store) run(ctx context.Context, j *job) {
	defer j.cancel()
	n, err := s.newHome(s.dirs.make)
	made := err == nil
	var rec *layerFile
	if made {
		rec, err = s.loadLayer(ctx, j, n)
	}
	if j.registry != "" {
		s.cfg.Metrics.LayerBytes(j.registry, j.loaded.Load())
	}
	if err != nil {
		err = fmt.Errorf("layer %s: %w", j.from.desc.Digest, disk.Exhausted(err))
		if made {
			if e := s.removeDir(context.Background(), n); e != nil {
				s.log.Warn("leftover of a pull is still there", "layer", n, "error", e)
			}
		}
	}
	if s.finish(j, rec, n, err) {
		if e := s.removeDir(context.Background(), n); e != nil {
			s.log.Warn("leftover of a pull is still there", "layer", n, "error", e)
		}
	}
	close(j.done) // leave waits for this, so that a failed pull returns when the files are removed
}

// newHome has a function make the directory of a layer under a new number, and marks the directory as busy. A number
// whose directory is there already is passed over, and that directory stays: it may be a layer of the store on a data
// disk that was mounted after berthd had started. If there is an error, nothing of this number is to be removed.
func (s *Store) newHome(mkdir func(n string) error) (string, error) {
	for {
		n := s.index.newDir()
		err := mkdir(n)
		if errors.Is(err, os.ErrExist) {
			s.log.Warn("a directory of layers that this berthd did not find when it started stays", "layer", n)
			continue
		}
		if err != nil {
			s.index.release(n)
		}
		return n, err
	}
}

// finish hands a job's layer to its waiters. unneeded says that the directory n has to be removed: no pull waits any
// more, or another job for the same layer was faster.
func (s *Store) finish(j *job, rec *layerFile, n string, err error) (unneeded bool) {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	if s.index.jobs[j.jobKey] == j {
		delete(s.index.jobs, j.jobKey)
	}
	j.finished = true
	if j.err = err; err != nil {
		return false
	}
	switch l := s.index.layers[rec.Key]; {
	case l != nil:
		l.refs += j.waiters
		j.layer = l
		return true
	case j.waiters == 0:
		j.err = context.Canceled
		return true
	}
	delete(s.index.busy, n)
	j.layer = &layer{layerRecord: rec.layerRecord, refs: j.waiters}
	s.index.layers[rec.Key] = j.layer
	return false
}

// loadLayer downloads a layer and unpacks it into its directory, which is new. A host that sends other bytes than the
// digest says is not asked again. Where several hosts have sent parts of such bytes, any of them may be to blame: each
// is asked without the others, the first one last, since it ended too early.
//
// What is beyond a limit is not read to its end, so that nothing is known of its digest. It is asked for once more at
// hosts that have sent nothing of it: the limit is what the image exceeds if they send the same, or nothing better.
func (s *Store) loadLayer(ctx context.Context, j *job, n string) (*layerFile, error) {
	dir := s.dirs.home(n)
	bad := map[string]bool{}
	var suspects []string // the first is asked without the others
	var first, beyond error
	for {
		not := maps.Clone(bad)
		for i, h := range suspects {
			not[h] = i > 0
		}
		fs := filepath.Join(dir, layerFS)
		if err := makeLayerRoot(fs); err != nil {
			return nil, err
		}
		attempt := j.now.unpacker.attempt
		if j.raw {
			attempt = keepBlob
		}
		rec, hosts, err := attempt(ctx, j, fs, not)
		if err == nil {
			rec.N, rec.Key, rec.DiffID, rec.Boot = n, j.keyOf(), j.diffID.String(), s.boot
			if info, err := os.Stat(filepath.Join(dir, layertar.FileName)); err == nil {
				rec.Bytes += uint64(info.Size()) // Inodes are those of the layer alone: one without any is left out of mounts
			}
			return rec, s.dirs.writeRecord(n, rec)
		}
		corrupt := isCorrupt(err) && hosts != nil
		tooMuch := hosts != nil && errdefs.IsResourceExhausted(err) && !isErrno(err)
		switch {
		case ctx.Err() != nil, final(err) && !corrupt && !tooMuch, tooMuch && beyond != nil:
			return nil, err
		case tooMuch:
			s.log.Warn("registry sent a layer beyond a limit, and is not asked for it again", "blob", j.from.desc.Digest,
				"hosts", hosts, "error", err)
			beyond, suspects = err, nil
			for _, h := range hosts {
				bad[h] = true
			}
		case beyond != nil && !corrupt:
			return nil, beyond
		case len(suspects) > 0:
			bad[suspects[0]] = true
			suspects = suspects[1:]
		case corrupt && len(hosts) > 1:
			suspects = slices.Clone(hosts)
			slices.Reverse(suspects)
		case corrupt:
			bad[hosts[0]] = true
		case first != nil && (hosts != nil || errdefs.IsNotFound(err)): // no host is left
			return nil, first
		default:
			return nil, err
		}
		if corrupt {
			s.log.Warn("registry sent a corrupt blob", "blob", j.from.desc.Digest, "hosts", hosts, "error", err)
			first = errors.Join(first, err)
		}
		if err := s.dirs.removeTree(context.Background(), n, layerFS); err != nil {
			return nil, err
		}
	}
}

func makeLayerRoot(fs string) error {
	if err := os.Mkdir(fs, 0o755); err != nil {
		return err
	}
	return os.Chmod(fs, 0o755) // whatever the umask: it is the root directory of containers
}
