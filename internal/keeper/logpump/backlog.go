package logpump

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	// DefaultBacklog is how many bytes of a stream are kept for a client that does not take them, DefaultTotal how many
	// for all clients.
	DefaultBacklog = 256 << 20
	DefaultTotal   = 1 << 30
	// waitingTotal is how much of all clients' may wait in memory for the disk.
	waitingTotal = 48 << 20
	// spareShare is which share of a file system stays free of what is kept for clients: one in so many blocks.
	spareShare = 10
	// spillPrefix begins the names of files that are being made where a file cannot be made without a name.
	spillPrefix = "spill-"
)

// Keep says how much unread output is kept for a client, and where.
type Keep struct {
	// Dir is an absolute directory, whose file system has the unlinked files; empty: that of NewBacklogs.
	Dir string
	// Backlog is how many bytes of each stream are kept; 0: DefaultBacklog. Total is how many for all clients of all logs
	// together, whatever it was before; 0: DefaultTotal.
	Backlog, Total int64
}

// Backlogs counts the unread output of the clients of all logs: the bytes that wait for the disk, and those on disk.
// The little that each client has in memory does not count.
//
// A client may have at most as many bytes as it leaves free for others: one client gets half of the total, two get a
// third each. So clients that never read leave some of the total for clients that read slowly.
type Backlogs struct {
	dir  string
	room func(dir string) error // an error where the file system of a directory has none to spare

	mu            sync.Mutex
	total         int64
	held, waiting int64 // waiting is a part of held
	// leaving is the size of the files of clients that are gone or were disconnected, until these files are closed.
	// Other clients may count on this space at once; otherwise all clients could be disconnected before the first file is
	// closed. They wait for the close before they write more to the disk.
	leaving int64
	left    sync.Cond // of mu: leaving has become less, or a client is gone

	cleared sync.Map // directory to *sync.Once
}

// NewBacklogs makes the count. dir is for clients that name no directory.
func NewBacklogs(dir string) *Backlogs {
	b := &Backlogs{dir: dir, room: room, total: DefaultTotal}
	b.left.L = &b.mu
	return b
}

// limit sets the total.
func (b *Backlogs) limit(total int64) {
	if total <= 0 {
		total = DefaultTotal
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.total = total
}

// Held is how many bytes are kept.
func (b *Backlogs) Held() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held
}

func (b *Backlogs) limited() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.total
}

// share says whether a client that has mine of the held bytes may have n more. It may not have more than is left free
// then.
func share(total, held, mine, n int64) bool { return mine+n <= total-held-n }

// take counts n bytes that are to wait for the disk of a client that has held bytes, of which some wait already.
func (b *Backlogs) take(n, held, waiting int64, dir string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !share(b.total, b.held, held, n) {
		return fmt.Errorf("no more than %d bytes are kept for all attached clients, "+
			"of which it may have as many as it leaves to others", b.total)
	}
	if !share(waitingTotal, b.waiting, waiting, n) {
		return fmt.Errorf("the file system of %s does not take it as fast as it comes", dir)
	}
	b.held += n
	b.waiting += n
	return nil
}

// await waits until n bytes fit on the disk within the total, of which files that are being closed may still use a
// part. Then the bytes do not count as waiting any more. It returns false if their client is gone: the bytes are not to
// be written.
func (b *Backlogs) await(n int64, gone *atomic.Bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.leaving > 0 && b.held-b.waiting+b.leaving+n > b.total && !gone.Load() {
		b.left.Wait()
	}
	b.waiting -= n
	return !gone.Load()
}

// leave counts n bytes that are on the disk until the file of a client that is gone is closed, and closed counts them
// out.
func (b *Backlogs) leave(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held -= n
	b.leaving += n
	b.left.Broadcast()
}

func (b *Backlogs) closed(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leaving -= n
	b.left.Broadcast()
}

// stored says that n bytes are on disk, and do not wait for it any more.
func (b *Backlogs) stored(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting -= n
}

// give removes n bytes from the count, because they are not kept any more. adopt adds bytes that the previous program
// of this process has kept.
func (b *Backlogs) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held -= n
}

func (b *Backlogs) adopt(n int64) { b.give(-n) }

// open makes a file without a name.
func (b *Backlogs) open(dir string) (*os.File, error) {
	once, _ := b.cleared.LoadOrStore(dir, new(sync.Once))
	var err error
	once.(*sync.Once).Do(func() { err = clear(dir) })
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC|unix.O_EXCL, 0o600)
	if err != nil {
		return unlinked(dir)
	}
	return os.NewFile(uintptr(fd), "spill"), nil
}

// clear makes a directory, and removes what a keeper that was killed while it made a file has left there.
func clear(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), spillPrefix) {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// unlinked makes a file without a name where O_TMPFILE is not known.
func unlinked(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, spillPrefix)
	if err != nil {
		return nil, err
	}
	// It may be gone: a berthd that starts clears the directory, too.
	if err := os.Remove(f.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.Close()
		return nil, err
	}
	return f, nil
}

// room is an error if a file system has little left: one slow client must not take it from everybody else.
func room(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if st.Blocks > 0 && st.Bavail < st.Blocks/spareShare {
		return fmt.Errorf("less than a %dth of the file system of %s is free to keep it", spareShare, dir)
	}
	return nil
}
