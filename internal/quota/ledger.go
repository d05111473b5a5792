package quota

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/state"
)

// Grant is an ID that is given out. Its JSON is the format of <root>/quotas/<ID>/quota.json.
type Grant struct {
	ID    uint32 `json:"id"`
	Limit uint64 `json:"limit,omitempty"` // bytes; 0: none
	// Chosen is an ID that a client has named. Only such an ID is shared by holders with different directories.
	Chosen  bool                `json:"chosen,omitempty"`
	Holders map[string][]string `json:"holders,omitempty"` // to their directories
	// Clearing are directories that still bear the ID after their holder is gone.
	Clearing []string `json:"clearing,omitempty"`
	// Lost: the record could not be read. Files may have the ID, and nobody knows which.
	Lost bool `json:"lost,omitempty"`
}

func (g *Grant) clone() *Grant {
	c := *g
	c.Holders = maps.Clone(g.Holders)
	c.Clearing = slices.Clone(g.Clearing)
	return &c
}

func (g *Grant) bears(dir string) bool {
	for _, dirs := range g.Holders {
		if slices.Contains(dirs, dir) {
			return true
		}
	}
	return false
}

func (g *Grant) holderList() []string { return slices.Sorted(maps.Keys(g.Holders)) }

// Want is what a holder asks for.
type Want struct {
	ID    ID
	Limit uint64   // bytes; 0: none
	Dirs  []string // absolute; they may come to be later. All are on one file system.
}

// HeldError is why a directory or an ID is not given: another one has it. It is errdefs.ErrFailedPrecondition.
type HeldError struct {
	What    string // the directory, or the ID
	Limit   uint64
	Holders []string // sorted
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("%s has a disk quota of %d bytes from container %s already", e.What, e.Limit,
		strings.Join(e.Holders, ", "))
}

// Unwrap gives the error its code.
func (e *HeldError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// Ledger gives out project IDs. Its methods may be called concurrently. It gives no ID out again while a record, a file
// or a limit of the kernel still has the ID. It uses no ID that other programs use on the file system.
type Ledger struct {
	records state.Records
	log     *slog.Logger
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	work    sync.WaitGroup

	// holders has as keys those that have a grant, or may have one. It is changed with mu held, and read without it: mu is
	// held during calls of the kernel that may wait for a disk, and most containers have no quota.
	holders sync.Map

	mu      sync.Mutex // guards what follows
	grants  map[uint32]*Grant
	next    uint32
	failed  map[string]error // why directories could not be cleared, until that is tried again
	cleared chan struct{}    // closed and replaced whenever directories have been cleared, or could not be
}

// Open reads the grants that are recorded in a directory. Reconcile comes before any Take.
func Open(ctx context.Context, dir string, log *slog.Logger) (*Ledger, error) {
	l := &Ledger{
		records: state.Records{Dir: dir, File: "quota.json"}, log: log,
		grants: map[uint32]*Grant{}, next: MinID, failed: map[string]error{}, cleared: make(chan struct{}),
	}
	l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	loaded, broken, spared, err := state.LoadAll[Grant](l.records)
	if err != nil {
		return nil, fmt.Errorf("disk quotas: %w", err)
	}
	for _, o := range spared {
		log.Warn("the newest version of a record is spoilt, and its second file was read", "project", o.ID, "error", o.Err)
	}
	l.keepLost(broken)
	for _, g := range loaded {
		l.grants[g.ID] = g
		for holder := range g.Holders {
			l.holders.Store(holder, nil)
		}
	}
	return l, nil
}

// Close ends the ledger's own work.
func (l *Ledger) Close() {
	l.cancel()
	l.work.Wait()
}

func recordName(id uint32) string { return strconv.FormatUint(uint64(id), 10) }

// Reconcile ends the grants of holders that are gone. It sets the limits of the others again in the background, because
// a file system that does not answer would keep the node down.
func (l *Ledger) Reconcile(lives func(holder string) bool) {
	l.mu.Lock()
	// It is held to the end: what is started here may hold it for as long as a file system does not answer.
	defer l.mu.Unlock()
	gone := map[string]bool{}
	for _, g := range l.grants {
		for holder := range g.Holders {
			gone[holder] = !lives(holder)
		}
		if len(g.Holders) == 0 || len(g.Clearing) > 0 {
			l.startClearing(g.ID)
		}
	}
	for holder, isGone := range gone {
		if isGone {
			l.takeBackLocked(holder, everything)
		}
	}
	l.work.Go(l.limitAgain)
}

// limitAgain sets the limits of all grants again: a file system that was repaired may have lost them.
func (l *Ledger) limitAgain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range l.grants { // one whose record is lost keeps the limit that the kernel has
		for holder, dirs := range g.Holders {
			if err := limit(dirs[0], g.ID, g.Limit); err != nil {
				l.log.Error("set a disk quota again", "container_id", holder, "project", g.ID, "error", err)
			}
		}
	}
}

// Take gives a holder an ID for directories and limits them. The same directories with the same limit may have several
// holders, and so may an ID that clients have chosen. The directories are not marked yet. A directory that could not be
// cleared of its last ID is tried once more, and is then errdefs.ErrFailedPrecondition.
func (l *Ledger) Take(ctx context.Context, holder string, w Want) (*Grant, error) {
	if err := oneFileSystem(w.Dirs); err != nil {
		return nil, err
	}
	if err := check(w.Dirs[0]); err != nil {
		return nil, err
	}
	tried := map[string]bool{}
	l.mu.Lock()
	for {
		id, dir, wait := l.clearing(w.Dirs)
		if wait == nil {
			break
		}
		if err := l.failed[dir]; err != nil && tried[dir] {
			l.mu.Unlock()
			return nil, fmt.Errorf("the last disk quota of %s cannot be cleared: %w: %w", dir, err,
				errdefs.ErrFailedPrecondition)
		} else if err != nil {
			tried[dir] = true
			l.startClearing(id)
		}
		l.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the last disk quota of %s to be cleared: %w", w.Dirs[0], ctx.Err())
		}
		l.mu.Lock()
	}
	defer l.mu.Unlock()
	l.holders.Store(holder, nil)
	g, err := l.choose(w)
	if err != nil {
		return nil, err
	}
	g.Holders[holder] = append(g.Holders[holder], w.Dirs...)
	if err := l.records.SaveTwice(recordName(g.ID), g); err != nil {
		return nil, err
	}
	l.grants[g.ID] = g
	if err := limit(w.Dirs[0], g.ID, g.Limit); err != nil {
		return nil, err // Release takes it back
	}
	return g.clone(), nil
}

// choose finds the grant for a want: another's that fits, or a new one. The caller holds l.mu.
func (l *Ledger) choose(w Want) (*Grant, error) {
	for _, g := range l.grants {
		for _, dir := range w.Dirs {
			if !g.bears(dir) {
				continue
			}
			same := g.Limit == w.Limit && (w.ID.Number == 0 || w.ID.Number == g.ID)
			for _, other := range w.Dirs {
				same = same && g.bears(other)
			}
			if !same {
				return nil, &HeldError{What: dir, Limit: g.Limit, Holders: g.holderList()}
			}
			return g.clone(), nil
		}
	}
	if id := w.ID.Number; id != 0 {
		g := l.grants[id]
		switch {
		case g == nil || g.lost():
			return &Grant{ID: id, Limit: w.Limit, Chosen: true, Holders: map[string][]string{}}, nil
		case !g.Chosen || g.Limit != w.Limit && len(g.Holders) > 0:
			return nil, &HeldError{What: "quota ID " + recordName(id), Limit: g.Limit, Holders: g.holderList()}
		}
		g = g.clone()
		g.Limit = w.Limit
		if g.Holders == nil {
			g.Holders = map[string][]string{}
		}
		return g, nil
	}
	for range maxID - MinID {
		id := l.next
		if l.next++; l.next > maxID {
			l.next = MinID
		}
		if l.grants[id] != nil {
			continue
		}
		used, err := usageOf(w.Dirs[0], id)
		if err != nil {
			return nil, err
		}
		if used == (Usage{}) {
			return &Grant{ID: id, Limit: w.Limit, Holders: map[string][]string{}}, nil
		}
	}
	return nil, fmt.Errorf("no project ID is free: %w", errdefs.ErrResourceExhausted)
}

func oneFileSystem(dirs []string) error {
	var first unix.Stat_t
	for i, dir := range dirs {
		var st unix.Stat_t
		if err := unix.Stat(existing(dir), &st); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		if i == 0 {
			first = st
		} else if st.Dev != first.Dev {
			return fmt.Errorf("%s and %s cannot share a disk quota: they are on different file systems: %w", dirs[0], dir,
				errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// clearing returns one of the directories that still bears an ID of before, the ID, and what to wait for; nil: there is
// none. The caller holds l.mu.
func (l *Ledger) clearing(dirs []string) (id uint32, dir string, wait <-chan struct{}) {
	for _, g := range l.grants {
		for _, dir := range dirs {
			if slices.Contains(g.Clearing, dir) {
				return g.ID, dir, l.cleared
			}
		}
	}
	return 0, "", nil
}

// Mark gives directories, with all that is in them, the ID of a grant. A directory with an ID of somebody else is
// refused: see takeOver.
func (l *Ledger) Mark(ctx context.Context, id uint32, dirs ...string) error {
	for _, dir := range dirs {
		has, err := projectOf(dir)
		switch {
		case err != nil:
			return err
		case has == id: // all that was made in it since has it too
		case has != 0:
			err = l.markOver(ctx, dir, id, has)
		default:
			err = give(ctx, dir, id, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Resize changes the limit of the grant that a holder has for a directory. found is false where it has none.
func (l *Ledger) Resize(holder, dir string, bytes uint64) (found bool, err error) {
	if !l.mayHold(holder) {
		return false, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range l.grants {
		if !slices.Contains(g.Holders[holder], dir) {
			continue
		}
		if g.Limit == bytes {
			return true, nil
		}
		if len(g.Holders) > 1 {
			return true, &HeldError{What: dir, Limit: g.Limit, Holders: g.holderList()}
		}
		if err := limit(dir, g.ID, bytes); err != nil {
			return true, err
		}
		g.Limit = bytes
		return true, l.records.SaveTwice(recordName(g.ID), g)
	}
	return false, nil
}

// Held returns the grants of a holder.
func (l *Ledger) Held(holder string) []*Grant {
	if !l.mayHold(holder) {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []*Grant
	for _, id := range slices.Sorted(maps.Keys(l.grants)) {
		if g := l.grants[id]; g.Holders[holder] != nil {
			list = append(list, g.clone())
		}
	}
	return list
}

// mayHold is false for who has no grant. The answer does not wait for any disk.
func (l *Ledger) mayHold(holder string) bool {
	_, may := l.holders.Load(holder)
	return may
}

// Release takes back all IDs of a holder. Files that still have one of them are cleared in the background, after a
// crash by the next berthd.
func (l *Ledger) Release(holder string) {
	l.takeBack(holder, everything)
}

func everything(string) bool { return true }

// Return takes back what Take has given a holder for directories, as Release does for all of them.
func (l *Ledger) Return(holder string, dirs ...string) {
	l.takeBack(holder, func(dir string) bool { return slices.Contains(dirs, dir) })
}

// takeBack takes back the directories of a holder that which chooses.
func (l *Ledger) takeBack(holder string, which func(dir string) bool) {
	if !l.mayHold(holder) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.takeBackLocked(holder, which)
}

// takeBackLocked is takeBack for a caller who holds l.mu.
func (l *Ledger) takeBackLocked(holder string, which func(dir string) bool) {
	keeps := false
	defer func() {
		if !keeps {
			l.holders.Delete(holder)
		}
	}()
	for _, g := range l.grants {
		dirs, held := g.Holders[holder]
		if !held {
			continue
		}
		var back, kept []string
		for _, dir := range dirs {
			if which(dir) {
				back = append(back, dir)
			} else {
				kept = append(kept, dir)
			}
		}
		keeps = keeps || len(kept) > 0
		if len(back) == 0 && len(kept) > 0 {
			continue
		}
		if delete(g.Holders, holder); len(kept) > 0 {
			g.Holders[holder] = kept
		}
		for _, dir := range back {
			if !g.bears(dir) && !slices.Contains(g.Clearing, dir) {
				g.Clearing = append(g.Clearing, dir)
			}
		}
		if err := l.records.SaveTwice(recordName(g.ID), g); err != nil {
			l.log.Error("record the end of a disk quota", "project", g.ID, "error", err) // the next start does it again
		}
		l.startClearing(g.ID)
	}
}

// startClearing clears what is to be cleared of a grant, and forgets one without holders. A directory that cannot be
// cleared is tried again by the next Take of it, and by the next start. The caller holds l.mu.
func (l *Ledger) startClearing(id uint32) {
	dirs := slices.Clone(l.grants[id].Clearing)
	for _, dir := range dirs {
		delete(l.failed, dir)
	}
	l.work.Go(func() {
		var done []string
		failed := map[string]error{}
		for _, dir := range dirs {
			if err := clearOf(l.ctx, dir, id); err != nil {
				l.log.Error("clear a disk quota", "directory", dir, "project", id, "error", err)
				failed[dir] = err
				continue
			}
			done = append(done, dir)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		g := l.grants[id]
		if g == nil {
			return
		}
		maps.Copy(l.failed, failed)
		g.Clearing = slices.DeleteFunc(g.Clearing, func(dir string) bool { return slices.Contains(done, dir) })
		if err := l.forgetUnused(g, done); err != nil {
			l.log.Error("end a disk quota", "project", id, "error", err)
		}
		close(l.cleared)
		l.cleared = make(chan struct{})
	})
}

// clearOf takes an ID away from a directory and all that is in it. The directory may be gone with its container, or
// have another holder's ID by now. It may also have no ID, and files in it have one that could not be cleared before.
func clearOf(ctx context.Context, dir string, id uint32) error {
	has, err := projectOf(dir)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || err == nil && has != 0 && has != id {
		return nil
	}
	if err == nil {
		err = give(ctx, dir, 0, id)
	}
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.ENOTSUP) {
		return nil // a file system without IDs
	}
	return err
}

// forgetUnused forgets a grant that nobody has any more. The caller holds l.mu.
func (l *Ledger) forgetUnused(g *Grant, cleared []string) error {
	if len(g.Holders) > 0 || len(g.Clearing) > 0 {
		return l.records.SaveTwice(recordName(g.ID), g)
	}
	if g.lost() {
		return l.forgetLost(g, filepath.Dir(l.records.Dir))
	}
	if len(cleared) == 0 {
		cleared = []string{filepath.Dir(l.records.Dir)}
	}
	if err := limit(cleared[0], g.ID, 0); err != nil {
		return err
	}
	if err := os.RemoveAll(l.records.Path(recordName(g.ID))); err != nil {
		return err
	}
	delete(l.grants, g.ID)
	return nil
}
