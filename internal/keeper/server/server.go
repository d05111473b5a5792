package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"

	api "berth/api/keeper"
	"berth/internal/keeper/fdstore"
	"berth/internal/keeper/filter"
	"berth/internal/keeper/limits"
	"berth/internal/keeper/logpump"
	"berth/internal/keeper/oom"
	"berth/internal/keeper/orphan"
	"berth/internal/keeper/record"
	"berth/internal/keeper/runtime"
	"berth/internal/keeper/runtime/libcontainer"
	"berth/internal/keeper/runtime/plan"
	"berth/internal/keeper/runtime/selector"
	"berth/internal/keeper/runtime/stage"
	"berth/internal/keeper/wire"
)

// Config is what a keeper is started with.
type Config struct {
	Dir     string // its directory, on a file system that a reboot empties
	Binary  string // what Upgrade executes; empty: the path of the running program
	Version string
	Logger  *slog.Logger
	// Hangup is where SIGHUP arrives, if it is caught.
	Hangup chan<- os.Signal
}

// Server is a keeper.
type Server struct {
	cfg        Config
	log        *slog.Logger
	generation string // new for each fresh start
	image      uint32 // upgrades in place so far
	startedAt  time.Time
	lock       *os.File
	orphans    *orphan.Reaper
	oom        oom.Ledger
	limits     limits.Limits
	runtime    *selector.Selector
	store      *fdstore.Store // nil: no service manager
	backlogs   *logpump.Backlogs

	initProgram struct { // initCopy's
		sync.Mutex
		made bool
	}

	rpcListener, fdsListener *net.UnixListener
	rpc                      *ttrpc.Server
	serving                  sync.WaitGroup
	fatal                    chan error

	mu         sync.Mutex
	table      *record.Table
	containers map[string]*container
	sessions   map[string]*session
	subs       map[string]*subscriber
	files      map[string]*delivery
	left       map[string]leftClient // clients that were attached to containers which are off the table, by attach ID
	lost       []string              // containers whose rows are spoilt, until settle
	bare       bool                  // the table was not there when this keeper came; set before it serves
	settled    bool                  // the time to hand containers back is over
	upgrading  bool                  // nothing new may begin
	stop       chan struct{}         // closed when upgrading begins
	inflight   sync.WaitGroup
	watching   sync.WaitGroup // waiters for processes, and what they do when these end
}

// subdirectories of Config.Dir, beside those of runtime.Dir.
const (
	rowsDir   = "rows"
	spillDir  = "spill" // for clients of a berthd that names no directory
	filterDir = "filters"
)

// lockWait is how long a keeper that is being killed may take to let go of the lock.
const lockWait = 2 * time.Second

// New makes a keeper of the directory: a fresh one, one that goes on where a dead one stopped, or the next image of the
// one that this process is.
func New(cfg Config) (*Server, error) {
	if !filepath.IsAbs(cfg.Dir) {
		return nil, fmt.Errorf("keeper's directory %q is not absolute: %w", cfg.Dir, errdefs.ErrInvalidArgument)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Binary == "" {
		exe, err := os.Executable()
		if err != nil {
			return nil, err
		}
		cfg.Binary = exe
	}
	if err := wire.MakeDir(cfg.Dir); err != nil {
		return nil, err
	}
	_, bare := os.Lstat(filepath.Join(cfg.Dir, rowsDir))
	dir := runtime.Dir(cfg.Dir)
	for _, d := range []string{dir.States(), filepath.Join(cfg.Dir, rowsDir), dir.Bundles(), filepath.Join(cfg.Dir, filterDir)} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	s := &Server{
		cfg: cfg, log: cfg.Logger, startedAt: time.Now(), generation: rand.Text(),
		backlogs:   logpump.NewBacklogs(filepath.Join(cfg.Dir, spillDir)),
		bare:       errors.Is(bare, os.ErrNotExist),
		fatal:      make(chan error, 1),
		containers: map[string]*container{}, sessions: map[string]*session{},
		subs: map[string]*subscriber{}, files: map[string]*delivery{}, left: map[string]leftClient{}, stop: make(chan struct{}),
	}
	s.table = record.NewTable(filepath.Join(cfg.Dir, rowsDir), s.log)
	stages, err := plan.OpenStages(cfg.Dir, s.log)
	if err != nil {
		return nil, err
	}
	s.limits = limits.Own(s.log)
	s.orphans = orphan.New(s.owns, s.log)
	filters := filter.NewStore(filepath.Join(cfg.Dir, filterDir), s.usedFilters, s.log)
	lib := libcontainer.New(s.dir(), stages, filters, s.orphans.Begin)
	s.runtime = selector.New(s.dir(), s.orphans.Begin, stage.New(s.dir(), stages, filters, lib), lib)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, os.NewSyscallError("prctl(PR_SET_CHILD_SUBREAPER)", err)
	}
	s.store = fdstore.Open(s.log)

	saved, err := savedState()
	if err != nil {
		return nil, err
	}
	if saved != nil {
		return s, s.restore(saved)
	}
	if err := s.acquire(); err != nil {
		return nil, err
	}
	if s.rpcListener, err = wire.Listen("unix", cfg.Dir, wire.RPCSocket); err != nil {
		return nil, err
	}
	if s.fdsListener, err = wire.Listen("unixpacket", cfg.Dir, wire.FDsSocket); err != nil {
		return nil, err
	}
	return s, s.inherit()
}

// dir is the keeper's directory as engines have it.
func (s *Server) dir() runtime.Dir { return runtime.Dir(s.cfg.Dir) }

// acquire takes the lock that only one keeper of a directory has.
func (s *Server) acquire() error {
	path := filepath.Join(s.cfg.Dir, wire.LockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(lockWait); ; time.Sleep(10 * time.Millisecond) {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			s.lock = f
			return nil
		}
		if err != unix.EWOULDBLOCK || time.Now().After(deadline) {
			f.Close()
			return fmt.Errorf("another keeper runs in %s: lock %s: %w", s.cfg.Dir, path, err)
		}
	}
}

// Serve answers until the context ends. Containers outlive it.
func (s *Server) Serve(ctx context.Context) error {
	go s.orphans.Run()
	if err := s.listen(); err != nil {
		return err
	}
	if s.store != nil {
		s.store.Notify("READY=1")
	}
	s.log.Info("keeper serves", "dir", s.cfg.Dir, "pid", os.Getpid(), "generation", s.generation, "image", s.image)
	time.AfterFunc(adoptGrace, s.settle)
	select {
	case <-ctx.Done():
		s.leave()
		return nil
	case err := <-s.fatal:
		return err
	}
}

// listen starts to answer on the listeners.
func (s *Server) listen() error {
	rpc, err := ttrpc.NewServer(ttrpc.WithServerHandshaker(ttrpc.UnixCredentialsFunc(func(c *unix.Ucred) error {
		if c.Uid != 0 && c.Uid != uint32(os.Geteuid()) {
			return fmt.Errorf("peer with uid %d may not talk to the keeper", c.Uid)
		}
		return nil
	})))
	if err != nil {
		return err
	}
	s.rpc = rpc
	api.RegisterKeeperService(rpc, &service{s: s})
	// The server closes its listener when it shuts down; the socket itself outlives that for an upgrade.
	f, err := s.rpcListener.File()
	if err != nil {
		return err
	}
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	s.serving.Go(func() {
		if err := rpc.Serve(context.Background(), l); err != nil && !errors.Is(err, ttrpc.ErrServerClosed) {
			s.fail(fmt.Errorf("serve %s: %w", wire.RPCSocket, err))
		}
	})
	s.serving.Go(s.acceptSessions)
	return nil
}

func (s *Server) fail(err error) {
	select {
	case s.fatal <- err:
	default:
	}
}

// begin is called before anything that must not be cut in two by an upgrade; end after it.
func (s *Server) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.upgrading {
		return fmt.Errorf("the keeper is being upgraded: %w", errdefs.ErrUnavailable)
	}
	s.inflight.Add(1)
	return nil
}

func (s *Server) end() { s.inflight.Done() }

// stopped is closed when an upgrade begins: what only waits goes away then and is asked for again.
func (s *Server) stopped() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stop
}

var errUpgrading = fmt.Errorf("the keeper is being upgraded: %w", errdefs.ErrUnavailable)

// get finds a container.
func (s *Server) get(id string) (*container, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.containers[id]; ok {
		return c, nil
	}
	return nil, fmt.Errorf("container %s: %w", id, errdefs.ErrNotFound)
}

// all lists the containers.
func (s *Server) all() []*container {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*container, 0, len(s.containers))
	for _, c := range s.containers {
		list = append(list, c)
	}
	return list
}

// owns says whether somebody waits for the process.
func (s *Server) owns(pid int) bool {
	for _, c := range s.all() {
		if c.owns(pid) {
			return true
		}
	}
	return false
}

// usedFilters are the keys of the seccomp filters that containers have, or are about to.
func (s *Server) usedFilters() map[string]bool {
	used := map[string]bool{}
	for _, c := range s.all() {
		c.mu.Lock()
		if c.row.Join != nil {
			used[c.row.Join.Filter] = true
		}
		used[c.filter] = true
		c.mu.Unlock()
	}
	return used
}
