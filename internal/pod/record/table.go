package record

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/disk"
	"berth/internal/metrics"
	"berth/internal/state"
)

// Table makes and loads the records R of one kind of object. S is the status of such an object for clients. The entries
// that it returns are the caller's to keep. Its methods may be called concurrently.
type Table[R, S any] struct {
	files state.Records
	kind  kind[R, S]
	log   *slog.Logger

	ahead chan struct{} // closed once ReadAhead's load has ended; nil: there is none
	read  loaded[R, S]  // by ReadAhead

	// Metrics counts writes of records; nil: they are not counted. It is set before the first write.
	Metrics *metrics.Set
}

// kind has the functions by which a Table knows pods from containers.
type kind[R, S any] struct {
	noun, key string                      // how log lines name an object, and the key of its ID
	check     func(id string, r *R) error // refuses a record that is not the object's, or is not whole
	change    func(from, to *R) error     // refuses an illegal change of phase
	phase     func(*R) string             // the phase, to see that it has changed
	lasts     func(*R) bool               // whether the object may stay in its phase
	status    func(*R) *S                 // the status for clients; it shares nothing with the record that changes
}

// Dir is the directory in which each object has one, named by its ID.
func (t *Table[R, S]) Dir() string { return t.files.Dir }

// Path is the directory of one object. Its record is in it, and so is what else the object keeps on disk.
func (t *Table[R, S]) Path(id string) string { return t.files.Path(id) }

// New is an entry whose record is in memory alone until its first Update.
func (t *Table[R, S]) New(id string, r R) *Entry[R, S] {
	e := &Entry[R, S]{table: t, id: id, rec: r}
	e.publish()
	return e
}

// Load reads all records, by ID. broken are the records that cannot be read, or are in the directory of another object.
// spared are those that were read from their second file: see state.Records. If a newer version of Berth has written a
// record in another format, Load returns an error, and the caller must change nothing.
func (t *Table[R, S]) Load() (entries map[string]*Entry[R, S], broken []state.Broken,
	spared []state.Spared, err error) {
	if t.ahead == nil {
		return t.load()
	}
	<-t.ahead
	ahead := t.read
	t.ahead, t.read = nil, loaded[R, S]{}
	return ahead.entries, ahead.broken, ahead.spared, ahead.err
}

// loaded is what load returns.
type loaded[R, S any] struct {
	entries map[string]*Entry[R, S]
	broken  []state.Broken
	spared  []state.Spared
	err     error
}

// ReadAhead begins to read all records, which the next Load returns. Until then, nobody else uses the table or writes
// to its directory.
func (t *Table[R, S]) ReadAhead() {
	t.ahead = make(chan struct{})
	go func() {
		defer close(t.ahead)
		t.read.entries, t.read.broken, t.read.spared, t.read.err = t.load()
	}()
}

func (t *Table[R, S]) load() (entries map[string]*Entry[R, S], broken []state.Broken,
	spared []state.Spared, err error) {
	var mu sync.Mutex // guards entries and others
	entries = map[string]*Entry[R, S]{}
	var others []state.Broken
	broken, spared, err = state.Load(t.files, func(id string, r *R) {
		err := t.kind.check(id, r)
		var e *Entry[R, S]
		if err == nil {
			e = t.New(id, *r)
		}
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			others = append(others, state.Broken{ID: id, Err: err})
			return
		}
		entries[id] = e
	})
	if err != nil {
		return nil, nil, nil, err
	}
	return entries, append(broken, others...), spared, nil
}

// Entry is the record of one object, and its status for clients. Its methods may be called concurrently. A caller that
// reads the record and then decides about an Update holds the object's lock from the reading to the Update.
type Entry[R, S any] struct {
	table *Table[R, S]
	id    string

	mu      sync.Mutex // guards the fields below
	rec     R
	unsaved bool // the last write of rec has failed, and the record on disk is an older one

	// current is replaced and never changed, so that no reader waits for a write to the disk.
	current atomic.Pointer[S]
}

// ID is the object's ID.
func (e *Entry[R, S]) ID() string { return e.id }

// SaveFile replaces a file in the object's directory by the JSON of v, as a whole. A full disk is
// errdefs.ErrResourceExhausted.
func (e *Entry[R, S]) SaveFile(name string, v any) error {
	return disk.Exhausted(e.table.files.SaveFile(e.id, name, v))
}

// LoadFile reads what SaveFile wrote.
func (e *Entry[R, S]) LoadFile(name string, v any) error {
	return e.table.files.LoadFile(e.id, name, v)
}

// Dir is the object's directory.
func (e *Entry[R, S]) Dir() string { return e.table.Path(e.id) }

// Record returns a copy of the record. What the copy points to is shared, and must not be written to.
func (e *Entry[R, S]) Record() R {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rec
}

// Status returns the object's status for clients. It is shared, and must not be written to.
func (e *Entry[R, S]) Status() *S { return e.current.Load() }

// Saved says whether the record on disk is the one in memory. It is not if the write of a change that had happened has
// failed: the next start of berthd then has to learn of the change from somebody else.
func (e *Entry[R, S]) Saved() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.unsaved
}

// publish makes the status of the current record. The caller holds e.mu, or nobody else has the entry yet.
func (e *Entry[R, S]) publish() { e.current.Store(e.table.kind.status(&e.rec)) }

// Mode says whether an Update is written to disk, and what happens if that fails.
type Mode int

const (
	// Save writes the record to disk, and then changes it in memory. If the write fails, nothing is changed.
	Save Mode = iota
	// Happened is for a change that has already happened, such as the end of a container. If the write fails, the record
	// in memory is changed all the same, and the failure is logged: pods have to be stopped and removed also on a full
	// disk. The next start of berthd learns the current state from the kernel and the keeper. A caller that would take
	// this from them asks Saved first.
	Happened
	// Draft changes only the record in memory, and not the status. The next write of the record has the change too. Draft
	// is for an object that is being made: after a crash before that write, the object is removed with the record that is
	// on disk. Draft is also for a value that the next start of berthd can find out again. It must not change the phase.
	Draft
	// Repair is for a record whose last change is lost, at the start of berthd. It may change any phase to any other. The
	// record in memory is changed even if the write fails. Both files of the record are written.
	Repair
)

// Update changes the record by a function, which is called once, with the entry locked, and must not block. It
// changes a copy: what the record points to is replaced, and never written to.
//
// If the new phase cannot follow the current one, the error is errdefs.ErrFailedPrecondition. If the disk is full, it
// is errdefs.ErrResourceExhausted. The record is then unchanged, unless the mode says otherwise.
func (e *Entry[R, S]) Update(mode Mode, change func(*R)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	next := e.rec
	change(&next)
	if err := e.check(mode, &next); err != nil {
		return err
	}
	var err error
	if mode != Draft {
		err = e.write(mode, &next)
	}
	if err != nil && mode == Save {
		return err
	}
	e.rec = next
	if mode != Draft {
		e.unsaved = err != nil
		e.publish()
	}
	if err != nil && mode == Happened {
		e.table.log.Error("record what a "+e.table.kind.noun+" has become", e.table.kind.key, e.id, "error", err)
		return nil
	}
	return err
}

// check refuses a change that the mode does not allow.
func (e *Entry[R, S]) check(mode Mode, next *R) error {
	k := &e.table.kind
	if err := k.check(e.id, next); err != nil {
		return fmt.Errorf("update of the record of %s %s: %w", k.noun, ShortID(e.id), err)
	}
	if mode == Draft && k.phase(next) != k.phase(&e.rec) {
		return fmt.Errorf("the phase of %s %s is not one to be kept in memory alone: %w", k.noun, ShortID(e.id),
			errdefs.ErrFailedPrecondition)
	}
	if mode == Repair {
		return nil
	}
	return k.change(&e.rec, next)
}

// write saves a record. A record that begins a lasting phase is written to both of its files.
func (e *Entry[R, S]) write(mode Mode, next *R) error {
	k, files := &e.table.kind, e.table.files
	save := files.Save
	if mode == Repair || k.phase(next) != k.phase(&e.rec) && k.lasts(next) {
		save = files.SaveTwice
	}
	begin := time.Now()
	err := save(e.id, next)
	e.table.Metrics.Record(k.noun, time.Since(begin), err)
	return disk.Exhausted(err)
}

// Mend writes the second file of a record again if it is damaged or missing. Otherwise the record would have only one
// file until its next change. mended says whether that was necessary. A record in a phase that does not last needs only
// one file, and is left alone.
func (e *Entry[R, S]) Mend() (mended bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.table.kind.lasts(&e.rec) || e.table.files.Doubled(e.id) {
		return false, nil
	}
	err = e.table.files.SaveTwice(e.id, &e.rec)
	e.unsaved = err != nil
	return true, err
}

// LogSpared logs which records were read from their second files, and whether their last change is lost. key is the log
// key of their IDs.
func LogSpared(log *slog.Logger, key string, list []state.Spared) {
	for _, s := range list {
		log.Warn("the newest version of a record is spoilt, and its second file was read", key,
			s.ID, "lost_last_change", s.Older,
			"error", s.Err)
	}
}
