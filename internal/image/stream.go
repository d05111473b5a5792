package image

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/compression"
	"berth/internal/disk"
	"berth/internal/image/encryption"
	"berth/internal/image/layertar"
	"berth/internal/image/registry"
	"berth/internal/image/source"
	"berth/internal/image/unpack"
	"berth/internal/jail"
	"berth/internal/jail/ring"
	"berth/internal/jail/wire"
)

// unpacking is the two children that unpack a layer. Both parse bytes that may be hostile, so berthd trusts neither.
// The first gets only the compressed bytes, the second the decompressed bytes and the layer's directory, and berthd
// hashes the bytes between them. A child that a hostile layer has taken over can spoil that layer, but cannot pass
// other bytes off as those of another digest.
type unpacking struct {
	decompress, unpack Child
	packed             *ring.Writer // to the first
	plain              *ring.Reader // from the first
	tar                *ring.Writer // to the second
	patience           time.Duration
	at                 atomic.Int32 // which child the others wait for: atDecompress, atUnpack or atEnd
	passed             atomic.Int64 // decompressed bytes that the second child has got
}

const (
	atDecompress = iota // the first child, or the compressed bytes that it waits for
	atUnpack
	atEnd // both children: all bytes have passed, and they have to end
)

// unpacker starts children that parse layers and archives. It has no state, and its methods may be called concurrently.
type unpacker struct {
	children Children
	limits   *source.Limits
	log      *slog.Logger
	patience time.Duration // how long a child may make no progress
}

// start starts the children. This takes some milliseconds, in which the request to the registry can be under way.
// record is the path of the layer's tar record (package layertar), which the second child writes; empty: none is
// written.
func (p *unpacker) start(ctx context.Context, fs, record string) (*unpacking, error) {
	limits := p.limits.Layer
	root, err := os.Open(fs)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var files []*os.File
	if record != "" {
		f, err := os.OpenFile(record, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		files = append(files, f)
	}
	calls, err := attributeCalls(root)
	if err != nil {
		return nil, err
	}
	var pairs [3]*ring.Pair
	for i, d := range []ring.Direction{ring.ToPeer, ring.FromPeer, ring.ToPeer} {
		if pairs[i], err = ring.New(d); err != nil {
			for _, pair := range pairs[:i] {
				pair.Close()
			}
			return nil, err
		}
	}
	packed, plain, tar := pairs[0], pairs[1], pairs[2]
	u := &unpacking{patience: p.patience, packed: packed.Writer(), plain: plain.Reader(), tar: tar.Writer()}
	u.decompress, err = p.children.Start(ctx, jail.Spec{
		Role: compression.Role, Memory: compression.Memory, In: []*ring.Pair{packed}, Out: []*ring.Pair{plain},
	})
	if err != nil {
		tar.ClosePeer()
		u.close()
		return nil, err
	}
	u.unpack, err = p.children.Start(ctx, jail.Spec{
		Role: unpack.Role, Task: limits, Memory: limits.Memory(), FileSize: limits.Bytes, MaxAnswer: limits.Answer(),
		In: []*ring.Pair{tar}, Dirs: []jail.Dir{{File: root}}, Files: files, Calls: calls,
	})
	if err != nil {
		u.decompress.Kill()
		_ = u.decompress.Wait(nil)
		u.close()
		return nil, err
	}
	return u, nil
}

func (u *unpacking) close() {
	u.packed.Close()
	u.plain.Close()
	u.tar.Close()
}

// abandon kills children that are not needed, because the layer could not be requested.
func (u *unpacking) abandon() {
	u.decompress.Kill()
	u.unpack.Kill()
	_ = u.decompress.Wait(nil)
	_ = u.unpack.Wait(nil)
	u.close()
}

// run passes a layer through the children: in, which is packed or what it is decrypted to. The error is that of one of
// them. Even then, in has been read to its end, because its digest says whether the layer is corrupt. Only if the error
// does not depend on the content (see final), run calls stop, which ends the download.
func (u *unpacking) run(in io.Reader, packed, plain *verified, stop func()) (result *unpack.Result, err error) {
	defer u.close()
	stream := &fed{Reader: in}
	stream.reading.Store(true)
	first := &stalling{
		child: u.decompress, what: compression.Role.Name, moved: func() int64 { return stream.n.Load() + u.passed.Load() },
		owes: func() bool { at := u.at.Load(); return at == atEnd || at == atDecompress && !stream.reading.Load() },
	}
	second := &stalling{
		child: u.unpack, what: unpack.Role.Name, moved: u.passed.Load, owes: func() bool {
			return u.at.Load() != atDecompress
		},
	}
	watch := newStall(u.patience, first, second)
	defer watch.stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if feed(u.packed, stream) != nil && packed.err == nil {
			_, _ = io.Copy(io.Discard, in)
		}
	}()
	passErr := u.pass(plain)
	u.at.Store(atEnd)
	if passErr != nil {
		u.plain.HangUp()
		u.tar.HangUp()
	}
	decompressErr := first.because(u.decompress.Wait(nil))
	result = &unpack.Result{}
	unpackErr := second.because(u.unpack.Wait(result))
	switch {
	// Where one child ends the other is cut off: the one to blame is the one whose end of a ring was lost.
	case errors.Is(passErr, errUnpackLost) && unpackErr != nil:
		err = unpackErr
	case decompressErr != nil:
		err = decompressErr
	case unpackErr != nil:
		err = unpackErr
	default:
		err = passErr
	}
	if final(err) {
		stop()
	}
	<-ended
	return result, err
}

// final tells whether an error does not depend on the bytes of the layer, such as a full disk.
func final(err error) bool {
	return errors.Is(err, errdefs.ErrResourceExhausted) || errors.Is(err, errdefs.ErrFailedPrecondition) || isErrno(err)
}

var errUnpackLost = errors.New("the child that unpacks has gone away")

// pass copies the output of the first child to the second child, and hashes it.
func (u *unpacking) pass(plain *verified) error {
	for {
		u.at.Store(atDecompress)
		theirs, err := u.plain.Next()
		u.at.Store(atUnpack)
		if err == io.EOF {
			if err := u.tar.End(); err != nil {
				return errUnpackLost
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("the child that decompresses has gone away: %w", err)
		}
		ours, err := u.tar.Slot()
		if err != nil {
			return errUnpackLost
		}
		// Copied before it is hashed: the first child can write to its own side as long as it lives, and not to this.
		n := copy(ours, theirs)
		plain.add(ours[:n])
		u.passed.Add(int64(n))
		if err := u.tar.Commit(n); err != nil {
			return errUnpackLost
		}
	}
}

// UnpackTar unpacks a tar, which may be packed, into a directory that is there and empty, as if it were a layer.
func (s *Store) UnpackTar(ctx context.Context, dir string, r io.Reader) error {
	u, err := s.now.Load().unpacker.start(ctx, dir, "")
	if err != nil {
		return err
	}
	packed := &verified{r: r}
	if _, err = u.run(packed, packed, &verified{}, func() {}); packed.err != nil {
		err = packed.err
	}
	return disk.Exhausted(err)
}

// attempt loads a layer once, from hosts other than those in bad. It returns the hosts that the layer came from, none
// if it was not found anywhere.
func (p *unpacker) attempt(ctx context.Context, j *job, fs string, bad map[string]bool) (*layerFile, []string, error) {
	loading, stop := context.WithCancel(ctx)
	defer stop()
	type started struct {
		*unpacking
		err error
	}
	ready := make(chan started, 1)
	go func() {
		u, err := p.start(loading, fs, filepath.Join(filepath.Dir(fs), layertar.FileName))
		ready <- started{u, err}
	}()
	src, err := j.from.fetch(loading, j.from.desc, bad)
	if err == nil {
		defer src.Close()
	}
	u := <-ready
	switch {
	case err != nil:
		if u.err == nil {
			u.abandon()
		}
		return nil, nil, err
	case u.err != nil:
		return nil, src.Hosts(), u.err
	}
	j.loaded.Store(0)
	rec, err := p.unpack(ctx, u.unpacking, src, j, stop)
	return rec, src.Hosts(), err
}

// unpack verifies, decompresses and unpacks a packed layer.
func (p *unpacker) unpack(ctx context.Context, u *unpacking, src blob, j *job, stop func()) (*layerFile, error) {
	packed := &verified{r: src, hash: j.from.desc.Digest.Algorithm().Hash(), count: j.loaded.Add}
	plain := &verified{hash: j.diffID.Algorithm().Hash()}
	var stream io.Reader = packed
	var decrypted *encryption.Reader
	if j.from.secret != nil {
		var err error
		if decrypted, err = j.from.secret.Decrypt(packed); err != nil {
			u.abandon()
			return nil, err
		}
		stream = decrypted
	}
	result, err := u.run(stream, packed, plain, stop)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case final(err):
		return nil, err
	case packed.err != nil:
		return nil, packed.err
	}
	// A layer that cannot be unpacked may be corrupt or badly made. Its digest says which.
	if got := packed.sum(); got != j.from.desc.Digest.Encoded() || packed.n != j.from.desc.Size {
		return nil, &corruptError{fmt.Sprintf("blob of %d bytes has digest %s:%s", packed.n,
			j.from.desc.Digest.Algorithm(), got)}
	}
	if decrypted != nil && !decrypted.Authentic() {
		return nil, fmt.Errorf("its bytes are not those that were encrypted with its key: the HMAC differs: %w",
			errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return nil, err
	}
	if got := plain.sum(); got != j.diffID.Encoded() {
		return nil, fmt.Errorf("unpacked it has digest %s, the image's configuration says %s: %w", got,
			j.diffID, errdefs.ErrInvalidArgument)
	}
	if err := believable(result, p.limits.Layer); err != nil {
		return nil, err
	}
	if len(result.Unsupported) > 0 {
		p.log.Warn("file system does not take extended attributes of a layer", "layer", j.from.desc.Digest,
			"attributes", wire.Printable(strings.Join(result.Unsupported[:min(len(result.Unsupported), 100)], " "), 1<<10))
	}
	return &layerFile{Implied: result.Implied, layerRecord: layerRecord{
		Bytes: result.Bytes, Inodes: result.Inodes, Entries: result.Entries, Length: result.Length,
		OwnRoot: result.OwnRoot, OpaqueRoot: result.OpaqueRoot, Depends: len(result.Implied) > 0,
	}}, nil
}

// believable refuses sizes from a child that the limits make impossible: the sizes of layers are added up for an image.
func believable(r *unpack.Result, limits unpack.Limits) error {
	if max(r.Bytes, r.Length) > limits.Bytes || max(r.Inodes, r.Entries) > limits.Entries {
		return fmt.Errorf("the child that unpacked it says that it takes %d bytes and %d files, more than the limits: %w",
			max(r.Bytes, r.Length), max(r.Inodes, r.Entries), errdefs.ErrInternal)
	}
	return nil
}

func isErrno(err error) bool {
	var errno unix.Errno
	return errors.As(err, &errno) && !errdefs.IsInvalidArgument(err)
}

// corruptError is content that is not what its digest says.
type corruptError struct{ text string }

func (e *corruptError) Error() string { return e.text }
func (e *corruptError) Unwrap() []error {
	return []error{registry.ErrCorrupt, errdefs.ErrFailedPrecondition}
}

// verified is a stream that hashes and counts the bytes that are read from it or added to it.
type verified struct {
	r     io.Reader
	hash  hash.Hash // nil: the digest is not needed
	n     int64
	err   error // of r, except io.EOF
	count func(int64) int64
}

func (v *verified) Read(p []byte) (int, error) {
	n, err := v.r.Read(p)
	v.add(p[:n])
	if v.count != nil {
		v.count(int64(n))
	}
	if err != nil && err != io.EOF {
		v.err = err
	}
	return n, err
}

func (v *verified) add(p []byte) {
	if v.hash != nil {
		_, _ = v.hash.Write(p)
	}
	v.n += int64(len(p))
}

func (v *verified) sum() string { return fmt.Sprintf("%x", v.hash.Sum(nil)) }
