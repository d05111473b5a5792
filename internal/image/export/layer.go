package export

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"berth/internal/image"
	"berth/internal/image/layertar"
	"berth/internal/jail"
	"berth/internal/jail/ring"
)

// lastWords is how long a child that makes no more bytes may take to say why.
const lastWords = 10 * time.Second

// patience is how long a child may take for the next MiB at most.
const patience = 5 * time.Minute

// layer is a layer whose tar can be made again.
type layer struct {
	digest digest.Digest // of its tar
	size   int64         // of its tar, as its record says
	home   string        // with its directory, and the record
	fs     string
}

// find looks at the record of a layer.
func find(info image.LayerInfo) (*layer, error) {
	d, err := digest.Parse(info.DiffID)
	if err != nil {
		return nil, fmt.Errorf("layer %s: %w", info.DiffID, err)
	}
	if info.Snapshotter != "" {
		return nil, fmt.Errorf("layer %s is not on the node: the snapshotter %s reads it from the registry, where the image "+
			"has to be copied from: %w", d, info.Snapshotter, errdefs.ErrFailedPrecondition)
	}
	if info.Origin == "" {
		return nil, unrecorded(d)
	}
	l := &layer{digest: d, home: info.Origin, fs: filepath.Join(info.Origin, "fs")}
	f, err := os.Open(filepath.Join(l.home, layertar.FileName))
	if os.IsNotExist(err) {
		return nil, unrecorded(d)
	}
	if err != nil {
		return nil, fmt.Errorf("layer %s: %w", d, err)
	}
	defer f.Close()
	head, err := layertar.ReadHead(f)
	if err != nil {
		return nil, fmt.Errorf("layer %s: %w", d, err)
	}
	if problem := head.Problem(); problem != "" {
		return nil, fmt.Errorf("layer %s cannot be packed again: %s: %w", d, problem, errdefs.ErrFailedPrecondition)
	}
	l.size = head.Length
	return l, nil
}

func unrecorded(d digest.Digest) error {
	return fmt.Errorf("layer %s was unpacked by a version of Berth that did not record its tar: remove the image, and "+
		"others that have this layer, and pull it again (berth rmi, berth pull): %w", d, errdefs.ErrFailedPrecondition)
}

// write makes the tar of the layer again. What it has written is to be thrown away if it fails.
func (l *layer) write(ctx context.Context, children image.Children, w io.Writer) error {
	if err := l.rebuild(ctx, children, w); err != nil {
		return fmt.Errorf("layer %s: make its tar again: %w", l.digest, err)
	}
	return nil
}

func (l *layer) rebuild(ctx context.Context, children image.Children, w io.Writer) error {
	record, err := os.Open(filepath.Join(l.home, layertar.FileName))
	if err != nil {
		return err
	}
	defer record.Close()
	fs, err := os.Open(l.fs)
	if err != nil {
		return err
	}
	defer fs.Close()
	out, err := ring.New(ring.FromPeer)
	if err != nil {
		return err
	}
	tar := out.Reader()
	defer tar.Close()
	child, err := children.Start(ctx, jail.Spec{
		Role: layertar.Role, Memory: layertar.Memory, Files: []*os.File{record}, Out: []*ring.Pair{out},
		Dirs: []jail.Dir{{File: fs, ReadOnly: true}},
	})
	if err != nil {
		return err
	}
	copyErr := l.copy(w, tar, child)
	if copyErr != nil {
		tar.HangUp()
		if copyErr.mine {
			child.Kill()
		} else { // it has ended, or is about to say why
			defer time.AfterFunc(lastWords, child.Kill).Stop()
		}
	}
	childErr := child.Wait(nil)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case copyErr != nil && (childErr == nil || copyErr.mine):
		return copyErr
	}
	return childErr
}

// copyError is the end of a copy. It is mine where the child is not the one to ask for the reason.
type copyError struct {
	error
	mine bool
}

func (e *copyError) Unwrap() error { return e.error }

// copy passes the bytes that the child makes on, and believes none of them before it has seen all.
func (l *layer) copy(w io.Writer, tar *ring.Reader, child image.Child) *copyError {
	hash := l.digest.Algorithm().Hash()
	buf := make([]byte, ring.SlotSize)
	var n int64
	for {
		// A child that its layer has taken over could hang on purpose.
		watch := time.AfterFunc(patience, child.Kill)
		theirs, err := tar.Next()
		watch.Stop()
		if err == io.EOF {
			break
		}
		if err != nil {
			return &copyError{fmt.Errorf("the child that makes it has gone away: %w", err), false}
		}
		// Copied before it is hashed: the child can change its side as long as it lives.
		ours := buf[:copy(buf, theirs)]
		if n += int64(len(ours)); n > l.size {
			break
		}
		_, _ = hash.Write(ours)
		if _, err := w.Write(ours); err != nil {
			return &copyError{err, true}
		}
	}
	if got := digest.NewDigest(l.digest.Algorithm(), hash); n != l.size || got != l.digest {
		return &copyError{fmt.Errorf("it has %d bytes and digest %s, and should have %d bytes: the layer's directory has "+
			"changed, or its record has: remove the image and pull it again: %w", n, got, l.size,
			errdefs.ErrFailedPrecondition), true}
	}
	return nil
}
