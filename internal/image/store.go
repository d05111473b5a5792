package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"berth/internal/dirtree"
	"berth/internal/disk"
	"berth/internal/image/registry"
	"berth/internal/jail"
	"berth/internal/model"
	"berth/internal/state"
)

// Config is what a store is made of. Only Root is needed.
type Config struct {
	Jail     *jail.Jail // in which images are parsed
	Root     string     // absolute; short, since the paths of layers go into mount options
	HostsDir string     // hosts.toml files of registries, as containerd's certs.d; empty: none
	// MaxConcurrentDownloads is how many layers of one pull are on their way at a time; default 4.
	MaxConcurrentDownloads int
	PinnedImages           []string // names of images (docker.io/library/busybox:1.36) that a client should not remove; * is any text
	Platform               string   // os/architecture[/variant]; empty: this machine's
	Retry                  registry.Retry
	Limits                 Limits
	UserAgent              string // of requests to registries
	// LeftoverAge is how long complete layers of a pull that died are kept for the next one; default 1 h.
	LeftoverAge time.Duration
	Logger      *slog.Logger
}

// Layers are an image's directories for overlayfs.
type Layers struct {
	Dirs []string // absolute, top first; at least one
}

// emptyLayer is the directory of an image without content.
const emptyLayer = "0"

// Store is a node's images. Its methods are safe for concurrent use, and those that only read never wait for a disk or
// a network.
type Store struct {
	cfg       Config
	root      string
	log       *slog.Logger
	client    *registry.Client
	describer *describer
	unpacker  *unpacker
	boot      string
	db        *bolt.DB        // see view and update
	lock      *os.File        // of the root, while the store is open
	files     state.Records   // an imageFile for each image; guarded by commit
	ctx       context.Context // of work that outlives a call
	cancel    context.CancelCauseFunc
	work      sync.WaitGroup
	syncs     chan struct{} // a sync of the disk is wanted

	commit  sync.Mutex // held while records change on disk; taken before mu
	roomFor int64      // the size of the database for which there is room on the disk; guarded by commit

	mu     sync.Mutex // guards what follows, and the fields of layers that say so
	images map[string]*imageRecord
	names  map[string]string // tags and name@digest, to image IDs
	layers map[string]*layer // by key
	jobs   map[digest.Digest]*job
	// variants has the directories of layers of which a variant is being made, with channels that are closed at the end.
	variants map[string]chan struct{}
	holds    map[string][]string // holder to image IDs
	next     uint64              // number of the next layer directory
	busy     map[string]bool     // directories being made or removed
	closed   bool
}

// layer is a complete layer.
type layer struct {
	layerRecord
	// Guarded by Store.mu:
	refs     int  // images and pulls that need it
	recorded bool // in the database
	adopted  bool // found complete after a crash, needed by nobody yet
}

// Open opens the store in Config.Root, and makes it where there is none. One process at a time has it open.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if !filepath.IsAbs(cfg.Root) {
		return nil, fmt.Errorf("image store: root %q is not an absolute path: %w", cfg.Root, errdefs.ErrInvalidArgument)
	}
	if cfg.Jail == nil {
		return nil, fmt.Errorf("image store: it has no jail to parse images in: %w", errdefs.ErrInvalidArgument)
	}
	if cfg.MaxConcurrentDownloads <= 0 {
		cfg.MaxConcurrentDownloads = 4
	}
	if cfg.LeftoverAge <= 0 {
		cfg.LeftoverAge = time.Hour
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	cfg.Limits = cfg.Limits.withDefaults()
	platform, name, err := parsePlatform(cfg.Platform)
	if err != nil {
		return nil, fmt.Errorf("image store: platform %q: %w: %w", cfg.Platform, err, errdefs.ErrInvalidArgument)
	}
	boot, err := bootID()
	if err != nil {
		return nil, fmt.Errorf("image store: %w", err)
	}
	// Layers hold other people's setuid programs: nobody but root may reach them.
	if err := os.MkdirAll(filepath.Join(cfg.Root, "layers", emptyLayer, layerFS), 0o700); err != nil {
		return nil, fmt.Errorf("image store: %w", disk.Exhausted(err))
	}
	if err := os.Chmod(filepath.Join(cfg.Root, "layers", emptyLayer, layerFS), 0o755); err != nil {
		return nil, fmt.Errorf("image store: %w", err)
	}
	// Without the label no container runs where the policy is enforced, but images can be had.
	if err := labelLayers(filepath.Join(cfg.Root, "layers")); err != nil {
		cfg.Logger.Warn("layers of images have a label that containers may not read", "error", err)
	}
	s := &Store{
		cfg: cfg, root: cfg.Root, log: cfg.Logger, boot: boot,
		describer: &describer{limits: &cfg.Limits, platform: platform, name: name},
		unpacker:  &unpacker{jail: cfg.Jail, limits: &cfg.Limits, log: cfg.Logger, patience: defaultPatience},
		client: registry.NewClient(registry.Config{
			HostsDir: cfg.HostsDir, Retry: cfg.Retry, MaxDocument: int64(cfg.Limits.Document), UserAgent: cfg.UserAgent, Logger: cfg.Logger,
		}),
		syncs:  make(chan struct{}, 1),
		images: map[string]*imageRecord{}, names: map[string]string{}, layers: map[string]*layer{},
		jobs: map[digest.Digest]*job{}, variants: map[string]chan struct{}{}, holds: map[string][]string{}, next: 1, busy: map[string]bool{},
	}
	// What is read before bbolt has its own lock must not change meanwhile.
	if s.lock, err = os.Open(cfg.Root); err != nil {
		return nil, fmt.Errorf("image store: %w", err)
	}
	if err := state.Exclusive(s.lock); err != nil {
		s.lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("%s is in use by another process: %w", cfg.Root, errdefs.ErrFailedPrecondition)
		}
		return nil, fmt.Errorf("image store: %w", err)
	}
	s.files = imageFiles(cfg.Root)
	if err := s.openChecked(); err != nil {
		if s.db != nil {
			s.db.Close()
		}
		s.lock.Close()
		return nil, fmt.Errorf("image store: %w", err)
	}
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	if err := s.load(); err != nil {
		s.db.Close()
		s.lock.Close()
		return nil, fmt.Errorf("image store: %w", err)
	}
	s.mend()
	s.keepRoom()
	s.work.Go(s.syncer)
	s.wantSync()
	return s, nil
}

var errClosed = fmt.Errorf("the image store is closed: %w", errdefs.ErrUnavailable)

// Close ends pulls that are under way and waits for them.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.cancel(errClosed)
	s.work.Wait()
	return errors.Join(s.db.Close(), s.lock.Close())
}

// start runs work that outlives a call, unless the store is closed.
func (s *Store) start(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.work.Go(f)
	return true
}

func (s *Store) layerDir(n string) string { return filepath.Join(s.root, "layers", n, layerFS) }

func parseNumber(n string) (uint64, bool) {
	v, err := strconv.ParseUint(n, 36, 64)
	return v, err == nil
}

// put enters a record into the tables in place of the one of the same ID, and counts its layers. Store.mu is held, or
// the store is being opened.
func (s *Store) put(r *imageRecord) {
	old := s.images[r.ID]
	if old != nil {
		s.forgetNames(old)
	} else {
		for _, key := range r.Layers {
			s.layers[key].refs++
			s.layers[key].adopted = false
		}
	}
	s.images[r.ID] = r
	if !r.Removed {
		for _, n := range r.Tags {
			s.names[n] = r.ID
		}
		for _, n := range r.Digests {
			s.names[n] = r.ID
		}
	}
}

func (s *Store) forgetNames(r *imageRecord) {
	for _, list := range [][]string{r.Tags, r.Digests} {
		for _, n := range list {
			if s.names[n] == r.ID {
				delete(s.names, n)
			}
		}
	}
}

// drop takes a record out of the tables. Layers that nothing needs any more are returned: see trash. Store.mu is held.
func (s *Store) drop(r *imageRecord) []*layer {
	s.forgetNames(r)
	delete(s.images, r.ID)
	var unused []*layer
	for _, key := range r.Layers {
		unused = append(unused, s.unref(s.layers[key])...)
	}
	return unused
}

// unref gives up one need of a layer. A layer that nothing needs leaves the table at once, so that nobody finds it while
// its directory goes. Store.mu is held.
func (s *Store) unref(l *layer) []*layer {
	if l.refs--; l.refs > 0 {
		return nil
	}
	delete(s.layers, l.Key)
	s.busy[l.N] = true
	return []*layer{l}
}

// find resolves a tag, a repo digest, an ID, the start of an ID, or a short name. Store.mu is held.
func (s *Store) find(ref string) (*imageRecord, error) {
	notFound := func() error { return fmt.Errorf("image %q: %w", ref, errdefs.ErrNotFound) }
	if ref == "" {
		return nil, fmt.Errorf("an image without a name: %w", errdefs.ErrInvalidArgument)
	}
	if hexID.MatchString(ref) {
		if r := s.images["sha256:"+strings.TrimPrefix(ref, "sha256:")]; r != nil && !r.Removed {
			return r, nil
		}
		return nil, notFound()
	}
	named, err := parseReference(ref)
	if err == nil {
		if id, ok := s.names[named.String()]; ok {
			return s.images[id], nil
		}
	}
	if hexStart.MatchString(ref) {
		start := "sha256:" + strings.TrimPrefix(ref, "sha256:")
		var hit *imageRecord
		for id, r := range s.images {
			if r.Removed || !strings.HasPrefix(id, start) {
				continue
			}
			if hit != nil {
				return nil, fmt.Errorf("image %q: more than one ID starts with this: %w", ref, errdefs.ErrInvalidArgument)
			}
			hit = r
		}
		if hit != nil {
			return hit, nil
		}
		return nil, notFound()
	}
	if err != nil {
		return nil, err
	}
	return nil, notFound()
}

// Get finds an image by tag, repo digest, ID, start of an ID, or short name (busybox).
func (s *Store) Get(_ context.Context, refOrID string) (*model.Image, error) {
	s.mu.Lock()
	r, err := s.find(refOrID)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return r.model(s.cfg.PinnedImages), nil
}

// List returns all images, sorted by their first tag, then by ID.
func (s *Store) List(context.Context) ([]*model.Image, error) {
	s.mu.Lock()
	records := make([]*imageRecord, 0, len(s.images))
	for _, r := range s.images {
		if !r.Removed {
			records = append(records, r)
		}
	}
	s.mu.Unlock()
	list := make([]*model.Image, len(records))
	for i, r := range records {
		list[i] = r.model(s.cfg.PinnedImages)
	}
	slices.SortFunc(list, func(a, b *model.Image) int {
		if c := cmp.Compare(first(a.RepoTags), first(b.RepoTags)); c != 0 {
			return c
		}
		return cmp.Compare(a.ID, b.ID)
	})
	return list, nil
}

// first sorts images without tags last.
func first(tags []string) string {
	if len(tags) == 0 {
		return "\xff"
	}
	return tags[0]
}

// Remove removes an image with all its names. Its layers stay while containers hold them. An image that is not there
// is no error.
func (s *Store) Remove(_ context.Context, refOrID string) error {
	r, unused, err := s.remove(refOrID)
	if err = errors.Join(err, s.removeDirs(unused)); err == nil || r == nil && errdefs.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("remove image %s: %w", refOrID, disk.Exhausted(err))
}

// remove takes an image out of the records. The directories of the layers that it returns are to be removed.
func (s *Store) remove(refOrID string) (*imageRecord, []*layer, error) {
	s.commit.Lock()
	defer s.commit.Unlock()
	s.mu.Lock()
	r, err := s.find(refOrID)
	if err != nil {
		s.mu.Unlock()
		return nil, nil, err
	}
	held := s.held(r.ID)
	var unused []*layer
	removed := r.with(func(c *imageRecord) { c.Removed = true })
	if held {
		s.put(removed)
	} else {
		unused = s.drop(r)
	}
	s.mu.Unlock()

	if held {
		if err = s.update(func(tx *bolt.Tx) error { return put(tx, bucketImages, r.ID, removed) }); err == nil {
			s.keepLater(r.ID)
		}
	} else {
		err = s.forget(r, unused)
	}
	if disk.Full(err) { // even the room that keepRoom has taken is used up
		const event = "a removed image is still in the database, and is there again after a restart if all of its layers are"
		s.log.Warn(event, "image", r.ID, "error", err)
		err = nil
	}
	return r, unused, err
}

// held tells whether a holder needs an image. Store.mu is held.
func (s *Store) held(id string) bool {
	for _, ids := range s.holds {
		if slices.Contains(ids, id) {
			return true
		}
	}
	return false
}

// forget takes an image, and layers that nothing needs, out of the database. Their directories go afterwards, whatever
// the database says: on a full disk it may have no room for a change, and what is recorded but not there is found out by
// Open. Store.commit is held.
func (s *Store) forget(r *imageRecord, unused []*layer) error {
	s.dropImage(r.ID)
	return s.update(func(tx *bolt.Tx) error {
		if err := tx.Bucket(bucketImages).Delete([]byte(r.ID)); err != nil {
			return err
		}
		for _, l := range unused {
			if err := tx.Bucket(bucketLayers).Delete([]byte(l.Key)); err != nil {
				return err
			}
		}
		if err := tx.Bucket(bucketBlobs).Delete([]byte(r.Manifest)); err != nil {
			return err
		}
		return tx.Bucket(bucketBlobs).Delete([]byte(r.ID))
	})
}

// trash removes layers that left the table.
func (s *Store) trash(unused []*layer) error {
	var err error
	if slices.ContainsFunc(unused, func(l *layer) bool { return l.recorded }) {
		s.commit.Lock()
		err = s.update(func(tx *bolt.Tx) error {
			for _, l := range unused {
				if err := tx.Bucket(bucketLayers).Delete([]byte(l.Key)); err != nil {
					return err
				}
			}
			return nil
		})
		s.commit.Unlock()
	}
	return errors.Join(err, s.removeDirs(unused))
}

func (s *Store) removeDirs(layers []*layer) error {
	var errs []error
	for _, l := range layers {
		errs = append(errs, s.removeDir(l.N))
	}
	return errors.Join(errs...)
}

// removeDir removes a layer's directory, which is marked busy. The mark of a complete layer goes first: a crash in the
// middle must not leave it on half of one.
func (s *Store) removeDir(n string) error {
	err := os.Remove(filepath.Join(s.root, "layers", n, layerFileName))
	if err == nil || errors.Is(err, os.ErrNotExist) {
		err = s.removeTree(n, "")
	}
	s.mu.Lock()
	delete(s.busy, n)
	s.mu.Unlock()
	return err
}

// removeTree removes a layer's directory, or one that is named in it. A layer is anybody's tree, as deep as its paths are long.
func (s *Store) removeTree(n, name string) error {
	at := filepath.Join(s.root, "layers", n, name)
	parent, err := os.Open(filepath.Dir(at))
	if err != nil {
		return err
	}
	defer parent.Close()
	if err := dirtree.Remove(context.Background(), int(parent.Fd()), filepath.Base(at)); err != nil {
		return fmt.Errorf("remove %s: %w", at, err)
	}
	return nil
}

// Hold keeps an image's layers until Release of the same holder, whatever becomes of the image. A holder may hold several
// images. It lives in memory: after a start, whoever needs layers holds them again before Collect.
func (s *Store) Hold(imageID, holder string) (*Layers, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := "sha256:" + strings.TrimPrefix(imageID, "sha256:")
	r := s.images[id]
	if r == nil {
		return nil, fmt.Errorf("image %s: %w", imageID, errdefs.ErrNotFound)
	}
	if !slices.Contains(s.holds[holder], id) {
		s.holds[holder] = append(s.holds[holder], id)
	}
	layers := make([]*layer, len(r.Layers))
	for i, key := range r.Layers {
		layers[i] = s.layers[key]
	}
	return &Layers{Dirs: s.dirs(layers)}, nil
}

// dirs are the directories of layers, which come base first, top first. Store.mu is held.
func (s *Store) dirs(layers []*layer) []string {
	var dirs []string
	for _, l := range slices.Backward(layers) {
		if l.Inodes == 0 && !l.OpaqueRoot {
			continue // an empty layer, of which many images have several
		}
		dir := s.layerDir(l.N)
		// Overlayfs refuses a directory twice; the upper one shows all that the lower one would.
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
		if l.OpaqueRoot {
			break
		}
	}
	if len(dirs) == 0 {
		dirs = []string{s.layerDir(emptyLayer)}
	}
	return dirs
}

// Release ends what a holder holds. What nobody needs then is removed in the background.
func (s *Store) Release(holder string) {
	s.mu.Lock()
	ids := s.holds[holder]
	delete(s.holds, holder)
	again := slices.ContainsFunc(ids, func(id string) bool {
		r := s.images[id]
		return r != nil && r.Removed && !s.held(id)
	})
	s.mu.Unlock()
	if again {
		s.start(func() {
			if err := s.dropRemoved(); err != nil {
				s.log.Warn("removed image is still there", "error", err)
			}
		})
	}
}

// dropRemoved finishes the removal of images that nothing holds any more.
func (s *Store) dropRemoved() error {
	var errs []error
	var unused []*layer
	s.commit.Lock()
	s.mu.Lock()
	var gone []*imageRecord
	for _, r := range s.images {
		if r.Removed && !s.held(r.ID) {
			gone = append(gone, r)
		}
	}
	layers := make([][]*layer, len(gone))
	for i, r := range gone {
		layers[i] = s.drop(r)
	}
	s.mu.Unlock()
	for i, r := range gone {
		errs = append(errs, s.forget(r, layers[i]))
		unused = append(unused, layers[i]...)
	}
	s.commit.Unlock()
	return errors.Join(append(errs, s.removeDirs(unused))...)
}

// Collect removes what crashes left, and layers that nothing needs. It is called once after a start, when all holders
// hold what they need.
func (s *Store) Collect(ctx context.Context) error {
	err := s.dropRemoved()
	err = errors.Join(err, s.collectLayers(s.cfg.LeftoverAge))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// collectLayers removes unneeded layers, but those that were complete when a pull died and are not older than age: the
// same pull will come again.
func (s *Store) collectLayers(age time.Duration) error {
	if s.keepsLayers() {
		return s.purge()
	}
	s.mu.Lock()
	var unused []*layer
	later := false
	for _, l := range s.layers {
		if l.refs > 0 {
			continue
		}
		if l.adopted && age > 0 {
			later = true
			continue
		}
		l.refs = 1
		unused = append(unused, s.unref(l)...)
	}
	known := map[string]bool{emptyLayer: true}
	for _, l := range s.layers {
		known[l.N] = true
	}
	for n := range s.busy {
		known[n] = true
	}
	s.mu.Unlock()

	err := s.trash(unused)
	entries, readErr := os.ReadDir(filepath.Join(s.root, "layers"))
	err = errors.Join(err, readErr)
	for _, e := range entries {
		s.mu.Lock()
		// Numbers only grow: what was not known above and is not busy now is nobody's.
		v, ok := parseNumber(e.Name())
		leftover := !known[e.Name()] && !s.busy[e.Name()] && (!ok || v < s.next) && !s.knows(e.Name())
		if leftover {
			s.busy[e.Name()] = true
		}
		s.mu.Unlock()
		if leftover {
			s.log.Info("leftover of a pull is removed", "layer", e.Name())
			err = errors.Join(err, s.removeDir(e.Name()))
		}
	}
	err = errors.Join(err, s.purge())
	if later {
		s.start(func() {
			timer := time.NewTimer(age)
			defer timer.Stop()
			select {
			case <-timer.C:
				if err := s.collectLayers(0); err != nil {
					s.log.Warn("leftovers of pulls are still there", "error", err)
				}
			case <-s.ctx.Done():
			}
		})
	}
	return err
}

// knows tells whether a directory is a layer's. Store.mu is held.
func (s *Store) knows(n string) bool {
	for _, l := range s.layers {
		if l.N == n {
			return true
		}
	}
	return false
}

// purge removes records that the tables do not have: of lost images and layers.
func (s *Store) purge() error {
	s.commit.Lock()
	defer s.commit.Unlock()
	keep := map[string]bool{}
	s.mu.Lock()
	for id, r := range s.images {
		keep[id], keep[string(r.Manifest)] = true, true
	}
	for key := range s.layers {
		keep[key] = true
	}
	s.mu.Unlock()
	type stale struct{ bucket, key []byte }
	var gone []stale
	err := s.view(func(tx *bolt.Tx) error {
		for _, b := range [][]byte{bucketImages, bucketLayers, bucketBlobs} {
			err := tx.Bucket(b).ForEach(func(k, _ []byte) error {
				if !keep[string(k)] {
					gone = append(gone, stale{b, slices.Clone(k)})
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || len(gone) == 0 {
		return err
	}
	for _, g := range gone {
		if string(g.bucket) == string(bucketImages) {
			s.dropImage(string(g.key))
		}
	}
	return s.update(func(tx *bolt.Tx) error {
		for _, g := range gone {
			if err := tx.Bucket(g.bucket).Delete(g.key); err != nil {
				return err
			}
		}
		return nil
	})
}

// Usage is what the store takes on disk, from what is recorded of each layer.
func (s *Store) Usage(context.Context) (model.FilesystemUsage, error) {
	u := model.FilesystemUsage{At: time.Now(), Mountpoint: s.root}
	s.mu.Lock()
	for _, l := range s.layers {
		u.UsedBytes += l.Bytes + 4096
		u.InodesUsed += l.Inodes + 3 // its directory, fs and layer.json
	}
	s.mu.Unlock()
	if info, err := os.Stat(filepath.Join(s.root, "images.db")); err == nil {
		u.UsedBytes += uint64(info.Size())
		u.InodesUsed++
	}
	return u, nil
}

// Manifest is an image's manifest as it was pulled.
func (s *Store) Manifest(imageID string) ([]byte, error) {
	return s.document(imageID, func(r *imageRecord) string { return string(r.Manifest) })
}

// ConfigJSON is an image's configuration as it was pulled.
func (s *Store) ConfigJSON(imageID string) ([]byte, error) {
	return s.document(imageID, func(r *imageRecord) string { return r.ID })
}

func (s *Store) document(imageID string, which func(*imageRecord) string) ([]byte, error) {
	s.mu.Lock()
	r := s.images["sha256:"+strings.TrimPrefix(imageID, "sha256:")]
	s.mu.Unlock()
	var data []byte
	if r != nil {
		err := s.view(func(tx *bolt.Tx) error {
			data = slices.Clone(tx.Bucket(bucketBlobs).Get([]byte(which(r))))
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if data == nil {
		return nil, fmt.Errorf("image %s: %w", imageID, errdefs.ErrNotFound)
	}
	return data, nil
}

// LayerInfo tells of one layer of an image.
type LayerInfo struct {
	DiffID string `json:"diffID"`
	Digest string `json:"digest,omitempty"` // of the blob it was pulled as
	Size   int64  `json:"size,omitempty"`   // of that blob
	Dir    string `json:"dir"`
	Bytes  uint64 `json:"bytes"` // on disk
	Inodes uint64 `json:"inodes"`
}

// Layers tells of an image's layers, base first.
func (s *Store) Layers(imageID string) ([]LayerInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.images["sha256:"+strings.TrimPrefix(imageID, "sha256:")]
	if r == nil {
		return nil, fmt.Errorf("image %s: %w", imageID, errdefs.ErrNotFound)
	}
	out := make([]LayerInfo, len(r.Layers))
	for i, key := range r.Layers {
		l := s.layers[key]
		out[i] = LayerInfo{DiffID: l.DiffID, Dir: s.layerDir(l.N), Bytes: l.Bytes, Inodes: l.Inodes}
		if i < len(r.Blobs) {
			out[i].Digest, out[i].Size = r.Blobs[i].Digest.String(), r.Blobs[i].Size
		}
	}
	return out, nil
}

// wantSync asks for the disk to be synced soon.
func (s *Store) wantSync() {
	select {
	case s.syncs <- struct{}{}:
	default:
	}
}

// syncer brings what was pulled to disk, and then says so in the records. It runs until Close.
func (s *Store) syncer() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.syncs:
			if err := s.sync(); err != nil {
				s.log.Warn("images are not known to be on disk", "error", err)
			}
		}
	}
}

func (s *Store) sync() error {
	var layers []*layer
	s.mu.Lock()
	for _, l := range s.layers {
		if l.Boot != "" && l.recorded {
			layers = append(layers, l)
		}
	}
	s.mu.Unlock()
	if len(layers) == 0 {
		return nil
	}
	dir, err := os.Open(s.root)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", s.root, err)
	}
	for _, l := range layers {
		s.noteSynced(l.N)
	}

	s.commit.Lock()
	defer s.commit.Unlock()
	var records []layerRecord
	s.mu.Lock()
	for _, l := range layers {
		if s.layers[l.Key] == l {
			l.Boot = ""
			records = append(records, l.layerRecord)
		}
	}
	s.mu.Unlock()
	return s.update(func(tx *bolt.Tx) error {
		for _, l := range records {
			if err := put(tx, bucketLayers, l.Key, l); err != nil {
				return err
			}
		}
		return nil
	})
}
