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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"berth/internal/disk"
	"berth/internal/dockerauth"
	"berth/internal/image/ranges"
	"berth/internal/image/registry"
	"berth/internal/image/source"
	"berth/internal/image/verifier"
	"berth/internal/metrics"
	"berth/internal/model"
	"berth/internal/state"
)

// Config is the configuration of a Store. Only Children and Root are required.
type Config struct {
	Settings
	Children  Children // which parse images
	Root      string   // absolute; short, since the paths of layers go into mount options
	UserAgent string   // of requests to registries
	// LeftoverAge is how long complete layers are kept for the next pull, of a pull that a kill of berthd has ended, or
	// whose client or registry has gone away; default 1 h.
	LeftoverAge time.Duration
	// Snapshotter has layers that are read from the registry as containers ask for them; nil: all are unpacked here.
	Snapshotter Snapshotter
	Logger      *slog.Logger
	Metrics     *metrics.Set // nil: nothing is counted
}

// Settings are those of a Store that can be changed while it is open.
type Settings struct {
	HostsDir string // hosts.toml files of registries, as containerd's certs.d; empty: none
	// MaxConcurrentDownloads is how many layers of one pull are on their way at a time; default 4.
	MaxConcurrentDownloads int
	// names of images (docker.io/library/busybox:1.36) that a client should not remove; * is any text
	PinnedImages []string
	Platform     string // os/architecture[/variant]; empty: this machine's
	Retry        registry.Retry
	Limits       source.Limits
	Ranges       ranges.Settings // of large layers, which are read over several connections
	// Credentials is the path of a config.json with the node's own credentials, for pulls that come without; empty: none.
	Credentials string
	// DecryptionKeys is a directory with the node's private keys for encrypted images; empty: they are refused.
	DecryptionKeys string
	Proxies        registry.Proxies
	// Verifiers say which images may be pulled. Without a directory, none is asked.
	Verifiers VerifierSettings
}

// VerifierSettings are those of image verifiers: see package verifier.
type VerifierSettings struct {
	Dir     string // absolute; empty: images are not verified
	Max     int    // how many programs Dir may have; negative: any number
	Timeout time.Duration
}

// inForce is one version of the settings, with the objects that are made from them. It is never changed: a pull or an
// import uses the version that was in force when it began.
type inForce struct {
	Settings
	client    *registry.Client
	describer *source.Describer
	unpacker  *unpacker
	verifiers *verifier.Verifiers // nil: images are not verified
}

func (s *Store) settings(o Settings) (*inForce, error) {
	if o.MaxConcurrentDownloads <= 0 {
		o.MaxConcurrentDownloads = 4
	}
	o.Limits = o.Limits.WithDefaults()
	now := &inForce{Settings: o}
	var err error
	if now.describer, err = source.NewDescriber(o.Platform, &now.Limits); err != nil {
		return nil, fmt.Errorf("image store: platform %q: %w: %w", o.Platform, err, errdefs.ErrInvalidArgument)
	}
	now.unpacker = &unpacker{children: s.cfg.Children, limits: &now.Limits, log: s.log, patience: defaultPatience}
	var own func(context.Context, reference.Named) (*model.Auth, error)
	if o.Credentials != "" {
		own = dockerauth.NewNode(o.Credentials, s.log).Find
	}
	now.client = registry.NewClient(registry.Config{
		HostsDir: o.HostsDir, Retry: o.Retry, MaxDocument: int64(o.Limits.Document), UserAgent: s.cfg.UserAgent,
		Credentials: own, Proxies: o.Proxies, Pool: s.pool, Logger: s.log,
	})
	if v := o.Verifiers; v.Dir != "" {
		now.verifiers = verifier.New(verifier.Config{
			Dir: v.Dir, Max: v.Max, Timeout: v.Timeout,
			Env:     verifier.Environment(o.Proxies.HTTP, o.Proxies.HTTPS, o.Proxies.No),
			Metrics: s.cfg.Metrics, Log: s.log,
		})
	}
	return now, nil
}

// Prepare checks new settings. adopt puts them into force, for pulls, imports and lists that begin from then on.
func (s *Store) Prepare(o Settings) (adopt func(), err error) {
	next, err := s.settings(o)
	if err != nil {
		return nil, err
	}
	return func() {
		s.pool.Configure(o.Ranges)
		s.now.Store(next)
	}, nil
}

// Layers are an image's directories for overlayfs.
type Layers struct {
	Dirs []string // absolute, top first; at least one
	// Remote asks a snapshotter for the directories of an image that has layers with it: then there are no Dirs. Its file
	// systems may not answer, so this process leaves the directories alone (package hostpath). nil: all layers are here.
	Remote func(context.Context) ([]string, error)
}

// emptyLayer is the directory of an image without content.
const emptyLayer = "0"

// Store is a node's images. Its methods are safe for concurrent use. Those that only read never wait for a network, and
// for a disk only where they read documents or a long configuration. Each lock is in the part whose fields it guards:
// see index and database.
type Store struct {
	cfg   Config // but for its Settings: those are in now
	now   atomic.Pointer[inForce]
	root  string
	boot  string // of the machine
	log   *slog.Logger
	dirs  *layerDirs
	index *index
	db    *database
	pool  *ranges.Pool // of all pulls

	remote remoteLayers

	lock   *os.File        // of the root, while the store is open
	ctx    context.Context // of work that outlives a call
	cancel context.CancelCauseFunc
	work   sync.WaitGroup
	syncs  *disk.Flusher

	syncing syncing
}

// Open opens the store in Config.Root, and makes it where there is none. One process at a time has it open.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if !filepath.IsAbs(cfg.Root) {
		return nil, fmt.Errorf("image store: root %q is not an absolute path: %w", cfg.Root, errdefs.ErrInvalidArgument)
	}
	if cfg.Children == nil {
		return nil, fmt.Errorf("image store: it has no children to parse images: %w", errdefs.ErrInvalidArgument)
	}
	if cfg.LeftoverAge <= 0 {
		cfg.LeftoverAge = time.Hour
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
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
	// Without the label, no container can run if the policy is enforced, but images can be pulled.
	if err := labelLayers(filepath.Join(cfg.Root, "layers")); err != nil {
		cfg.Logger.Warn("layers of images have a label that containers may not read", "error", err)
	}
	s := &Store{
		cfg: cfg, root: cfg.Root, log: cfg.Logger, boot: boot, index: newIndex(), pool: ranges.NewPool(cfg.Ranges),
		syncing: syncing{fs: unix.Syncfs},
	}
	s.syncs = disk.NewFlusher(s.sync,
		func(err error) { s.log.Warn("images are not known to be on disk", "error", err) }, syncRetry)
	adopt, err := s.Prepare(cfg.Settings)
	if err != nil {
		return nil, err
	}
	adopt()
	if s.dirs, err = openLayerDirs(filepath.Join(cfg.Root, "layers"), boot, cfg.Logger); err != nil {
		return nil, fmt.Errorf("image store: %w", err)
	}
	s.db = &database{root: cfg.Root, boot: boot, log: cfg.Logger, layers: s.dirs, files: imageFiles(cfg.Root)}
	// This lock protects the files that are read before bbolt takes its own lock.
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
	if err := s.db.openChecked(); err != nil {
		if s.db.bolt != nil {
			s.db.bolt.Close()
		}
		s.lock.Close()
		return nil, fmt.Errorf("image store: %w", err)
	}
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	if err := s.load(); err != nil {
		s.db.bolt.Close()
		s.lock.Close()
		return nil, fmt.Errorf("image store: %w", err)
	}
	s.mend()
	s.db.keepRoom()
	s.work.Go(func() { s.syncs.Run(s.ctx) })
	s.syncs.Want()
	return s, nil
}

var errClosed = fmt.Errorf("the image store is closed: %w", errdefs.ErrUnavailable)

// Close ends pulls that are under way and waits for them. What was pulled is synced: a reboot may follow, or a copy of
// the disk.
func (s *Store) Close() error {
	s.index.mu.Lock()
	if s.index.closed {
		s.index.mu.Unlock()
		return nil
	}
	s.index.closed = true
	s.index.mu.Unlock()
	s.index.events.Close()
	s.cancel(errClosed)
	s.work.Wait()
	if err := s.sync(); err != nil { // the background sync ends with the store, also before a sync that is due
		s.log.Warn("images are not known to be on disk", "error", err)
	}
	return errors.Join(s.db.bolt.Close(), s.lock.Close())
}

// start runs work that outlives a call, unless the store is closed.
func (s *Store) start(f func()) bool {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	if s.index.closed {
		return false
	}
	s.work.Go(f)
	return true
}

// Get finds an image by tag, repo digest, ID, start of an ID, or short name (busybox). Whether it is a checkpoint may
// depend on the name.
func (s *Store) Get(_ context.Context, refOrID string) (*model.Image, error) {
	s.index.mu.Lock()
	r, err := s.index.find(refOrID)
	s.index.mu.Unlock()
	if err != nil {
		return nil, err
	}
	img, err := s.model(r)
	if err == nil {
		img.Checkpoint = r.checkpoint(refOrID)
	}
	return img, err
}

// model is an image with all of its configuration.
func (s *Store) model(r *imageRecord) (*model.Image, error) {
	if r.partial {
		var err error
		if r, err = r.whole(s.db.cached(digest.Digest(r.ID))); err != nil {
			return nil, err
		}
	}
	return r.model(s.now.Load().PinnedImages), nil
}

// List returns all images, sorted by their first tag, then by ID. Long configurations are left out.
func (s *Store) List(context.Context) ([]*model.Image, error) {
	s.index.mu.Lock()
	records := make([]*imageRecord, 0, len(s.index.images))
	for _, r := range s.index.images {
		if !r.Removed {
			records = append(records, r)
		}
	}
	s.index.mu.Unlock()
	pinned := s.now.Load().PinnedImages
	list := make([]*model.Image, len(records))
	for i, r := range records {
		list[i] = r.model(pinned)
	}
	slices.SortFunc(list, func(a, b *model.Image) int {
		if c := cmp.Compare(first(a.RepoTags), first(b.RepoTags)); c != 0 {
			return c
		}
		return cmp.Compare(a.ID, b.ID)
	})
	return list, nil
}

// first returns the first tag, or a string that sorts images without tags last.
func first(tags []string) string {
	if len(tags) == 0 {
		return "\xff"
	}
	return tags[0]
}

// Remove removes an image with all its names. Its layers stay while containers refer to them. An image
// that is not there is no error.
func (s *Store) Remove(_ context.Context, refOrID string) error {
	r, unused, err := s.remove(refOrID)
	err = errors.Join(err, s.removeDirs(context.Background(), unused))
	if err == nil || r == nil && errdefs.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("remove image %s: %w", refOrID, disk.Exhausted(err))
}

// remove takes an image out of the records. The directories of the layers that it returns are to be removed.
func (s *Store) remove(refOrID string) (*imageRecord, []*layer, error) {
	s.db.commit.Lock()
	defer s.db.commit.Unlock()
	s.index.mu.Lock()
	r, err := s.index.find(refOrID)
	if err != nil {
		s.index.mu.Unlock()
		return nil, nil, err
	}
	held := s.index.referenced(r.ID)
	var unused []*layer
	var documents []digest.Digest
	removed := r.with(func(c *imageRecord) { c.Removed = true })
	if held {
		s.index.replace(removed)
	} else {
		unused = s.index.drop(r)
		documents = s.index.ownDocuments(r)
	}
	s.index.mu.Unlock()

	if held {
		if err = s.db.update(func(tx *bolt.Tx) error { return putImage(tx, removed) }); err == nil {
			s.keepLater(r.ID)
		}
	} else {
		err = s.db.forget(r, documents, unused)
	}
	if disk.Full(err) { // even the room that keepRoom has taken is used up
		const event = "a removed image is still in the database, and is there again after a restart if all of its layers are"
		s.log.Warn(event, "image_id", r.ID, "error", err)
		err = nil
	}
	return r, unused, err
}

// Usage is the disk space of the store: the sum of the sizes in the records of layers.
func (s *Store) Usage(context.Context) (model.FilesystemUsage, error) {
	u := model.FilesystemUsage{At: time.Now(), Mountpoint: s.root}
	s.index.mu.Lock()
	for _, l := range s.index.layers {
		from := s.index.layers[l.DiffID]
		if from != nil && strings.HasPrefix(l.Key, chainKey) { // its files are the same, by hard links
			u.UsedBytes -= min(from.Bytes, l.Bytes)
			u.InodesUsed -= min(from.Inodes, l.Inodes)
		}
		u.UsedBytes += l.Bytes + 4096
		u.InodesUsed += l.Inodes + 4 // its directory, fs, layer.json and the record of its tar
	}
	s.index.mu.Unlock()
	if info, err := os.Stat(filepath.Join(s.root, databaseFile)); err == nil {
		u.UsedBytes += uint64(info.Size())
		u.InodesUsed++
	}
	return u, nil
}

// LayerUsage returns the layers of an image, each once, with their sizes on disk.
func (s *Store) LayerUsage(imageID string) (usage []model.LayerUsage) {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	if r := s.index.images[imageID]; r != nil {
		for _, key := range slices.Compact(slices.Sorted(slices.Values(r.needs()))) {
			if l := s.index.layers[key]; l != nil {
				usage = append(usage, model.LayerUsage{Key: key, Bytes: l.Bytes})
			}
		}
	}
	return usage
}

// Verifiers tells which image verifiers are asked now. It is nil where images are not verified.
func (s *Store) Verifiers() *verifier.Report { return s.now.Load().verifiers.Report() }

// Numbers returns the figures of the store for metrics.
func (s *Store) Numbers(ctx context.Context) metrics.ImageNumbers {
	var n metrics.ImageNumbers
	images := map[string]int{} // by layer
	s.index.mu.Lock()
	for _, r := range s.index.images {
		if r.Removed {
			continue
		}
		n.Images++
		for _, key := range r.Layers {
			images[key]++
		}
	}
	for key := range s.index.layers {
		if images[key] > 1 {
			n.Shared++
		} else {
			n.Alone++
		}
	}
	s.index.mu.Unlock()
	if u, err := s.Usage(ctx); err == nil {
		n.Bytes, n.Inodes = u.UsedBytes, u.InodesUsed
	}
	return n
}

// Manifest is an image's manifest as it was pulled.
func (s *Store) Manifest(imageID string) ([]byte, error) {
	return s.document(imageID, func(r *imageRecord) string { return string(r.Manifest) })
}

// ConfigJSON is an image's configuration as it was pulled. That of an artifact is one of its Blobs, and here NotFound.
func (s *Store) ConfigJSON(imageID string) ([]byte, error) {
	return s.document(imageID, func(r *imageRecord) string {
		if r.Artifact != "" {
			return ""
		}
		return r.ID
	})
}

// Repository is where an image is pushed to, by the configuration of registries that is in force.
func (s *Store) Repository(ctx context.Context, ref reference.Named, auth *model.Auth) (*registry.Repository, error) {
	return s.now.Load().client.Repository(ctx, ref, auth)
}

// Spool returns a new file without a name in the store's file system.
func (s *Store) Spool() (*os.File, error) { return disk.Unnamed(s.root) }

// Document is the manifest or the configuration of an image, by its digest.
func (s *Store) Document(digest string) ([]byte, error) {
	var data []byte
	err := s.db.view(func(tx *bolt.Tx) error {
		data = slices.Clone(tx.Bucket(bucketBlobs).Get([]byte(digest)))
		return nil
	})
	if err == nil && data == nil {
		err = fmt.Errorf("manifest or configuration %s: %w", digest, errdefs.ErrNotFound)
	}
	return data, err
}

func (s *Store) document(imageID string, which func(*imageRecord) string) ([]byte, error) {
	s.index.mu.Lock()
	r := s.index.images[wholeID(imageID)]
	s.index.mu.Unlock()
	var data []byte
	if r != nil {
		err := s.db.view(func(tx *bolt.Tx) error {
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

// LayerInfo describes one layer of an image.
type LayerInfo struct {
	DiffID string `json:"diffID"`
	Digest string `json:"digest,omitempty"` // of the blob it was pulled as
	Size   int64  `json:"size,omitempty"`   // of that blob
	Dir    string `json:"dir,omitempty"`
	Bytes  uint64 `json:"bytes"` // on disk
	Inodes uint64 `json:"inodes"`
	// Snapshotter has the layer, which is then not on the node as a whole. Empty: it is in Dir.
	Snapshotter string `json:"snapshotter,omitempty"`
	// Origin is the directory with the layer as it was unpacked, and the record of its tar: the parent of Dir, but for
	// variants. Empty: it is gone.
	Origin string `json:"-"`
}

// Layers describes an image's layers, base first. An artifact has Blobs instead.
func (s *Store) Layers(imageID string) ([]LayerInfo, error) {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	r := s.index.images[wholeID(imageID)]
	if r == nil {
		return nil, fmt.Errorf("image %s: %w", imageID, errdefs.ErrNotFound)
	}
	if r.Artifact != "" {
		return nil, nil
	}
	out := make([]LayerInfo, len(r.Layers))
	for i, key := range r.Layers {
		l := s.index.layers[key]
		out[i] = LayerInfo{DiffID: l.DiffID, Dir: s.dirs.fs(l.N), Bytes: l.Bytes, Inodes: l.Inodes}
		if l.Remote != nil {
			out[i].Dir, out[i].Snapshotter = "", l.Remote.Snapshotter
		}
		if from := s.index.layers[l.DiffID]; from != nil {
			out[i].Origin = s.dirs.home(from.N)
		}
		if i < len(r.Blobs) {
			out[i].Digest, out[i].Size = r.Blobs[i].Digest.String(), r.Blobs[i].Size
		}
	}
	return out, nil
}
