package daemon

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
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	api "berth/api/keeper"
	"berth/internal/codec"
	"berth/internal/keeper/events"
	"berth/internal/keeper/fdstore"
	"berth/internal/keeper/gate"
	"berth/internal/keeper/handover"
	"berth/internal/keeper/hook"
	"berth/internal/keeper/limits"
	"berth/internal/keeper/logpump"
	"berth/internal/keeper/oom"
	"berth/internal/keeper/orphan"
	"berth/internal/keeper/protocol"
	"berth/internal/keeper/record"
	"berth/internal/keeper/runtime"
	"berth/internal/keeper/session"
)

// Config is the configuration of a keeper.
type Config struct {
	Dir     string // its directory, on a file system that a reboot empties
	Binary  string // what Upgrade executes; empty: the path of the running program
	Version string
	Logger  *slog.Logger
	// Hangup is where SIGHUP arrives, if it is caught.
	Hangup chan<- os.Signal
	// Engines returns the container engines; nil: they are this node's own.
	Engines func(runtime.Dir, runtime.Spawning) Engines
}

// Server is a keeper. Each of its parts has its own lock.
type Server struct {
	cfg      Config
	log      *slog.Logger
	identity identity
	sockets  sockets

	gate       *gate.Gate
	containers *containers
	table      *record.Table // the records of containers on disk
	events     *events.Events
	sessions   *session.Table
	deliveries *session.Deliveries
	left       *leftClients
	escrow     *escrow
	adoption   *adoption

	runtime      Engines
	inits        *podInits
	orphans      *orphan.Reaper
	oom          oom.Ledger
	limits       limits.Limits
	backlogs     *logpump.Backlogs
	watching     gate.Tasks // waiters for processes, and what they do when these end
	upgradeWaits upgradeWaits
}

// identity tells keepers apart. An upgrade hands it on to the new program.
type identity struct {
	generation string // new for each fresh start
	upgrades   uint32 // upgrades in place so far
	startedAt  time.Time
}

// sockets are the sockets on which the keeper is reached, and the lock that only one keeper of a directory has.
type sockets struct {
	lock     *lock
	rpc, fds *net.UnixListener
	server   *ttrpc.Server
	serving  sync.WaitGroup
	fatal    chan error
}

// subdirectories of Config.Dir, beside those of runtime.Dir.
const (
	recordsDir = "rows"
	spillDir   = "spill" // for clients of a berthd that names no directory
	filterDir  = "filters"
)

// New makes a keeper of the directory: a new one, one that takes over from a keeper that was killed, or, after an
// upgrade in place, one that takes over from the replaced program of this process.
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
	if err := protocol.MakeDir(cfg.Dir); err != nil {
		return nil, err
	}
	_, bare := os.Lstat(filepath.Join(cfg.Dir, recordsDir))
	dir := runtime.Dir(cfg.Dir)
	for _, d := range []string{
		dir.States(), filepath.Join(cfg.Dir, recordsDir), dir.Bundles(), filepath.Join(cfg.Dir, filterDir),
	} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	s := &Server{
		cfg: cfg, log: cfg.Logger, identity: identity{startedAt: time.Now(), generation: rand.Text()},
		sockets:      sockets{fatal: make(chan error, 1)},
		gate:         gate.New(),
		upgradeWaits: usualWaits,
		containers:   &containers{byID: map[string]*container{}},
		table:        record.NewTable(filepath.Join(cfg.Dir, recordsDir), cfg.Logger),
		events:       events.New(),
		sessions:     session.NewTable(),
		left:         &leftClients{byID: map[string]leftClient{}},
		inits:        &podInits{dir: cfg.Dir, binary: cfg.Binary},
		backlogs:     logpump.NewBacklogs(filepath.Join(cfg.Dir, spillDir)),
	}
	s.deliveries = session.NewDeliveries(s.gate)
	s.adoption = &adoption{s: s, bare: errors.Is(bare, os.ErrNotExist)}
	s.limits = limits.Own(s.log)
	s.orphans = orphan.New(s.containers, hook.Running, s.log)
	if err := s.openEngines(); err != nil {
		return nil, err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, os.NewSyscallError("prctl(PR_SET_CHILD_SUBREAPER)", err)
	}
	s.escrow = &escrow{sessions: s.sessions, store: fdstore.Open(s.log)}

	saved, err := handover.Load()
	if err != nil {
		return nil, err
	}
	if saved != nil {
		return s, (&upgrade{s}).restore(saved)
	}
	if s.sockets.lock, err = acquire(cfg.Dir, s.log); err != nil {
		return nil, err
	}
	if s.sockets.rpc, err = protocol.Listen("unix", cfg.Dir, protocol.RPCSocket); err != nil {
		return nil, err
	}
	if s.sockets.fds, err = protocol.Listen("unixpacket", cfg.Dir, protocol.FDsSocket); err != nil {
		return nil, err
	}
	return s, s.adoption.inherit()
}

// dir is the keeper's directory as engines have it.
func (s *Server) dir() runtime.Dir { return runtime.Dir(s.cfg.Dir) }

// Serve answers until the context ends. Containers outlive it.
func (s *Server) Serve(ctx context.Context) error {
	go s.orphans.Run()
	if err := s.listen(); err != nil {
		return err
	}
	go warmUp()
	if s.escrow.store != nil {
		s.escrow.store.Notify("READY=1")
	}
	s.log.Info("keeper serves", "directory", s.cfg.Dir, "pid", os.Getpid(), "generation", s.identity.generation,
		"upgrades", s.identity.upgrades)
	time.AfterFunc(handbackWait, s.adoption.endHandback)
	select {
	case <-ctx.Done():
		s.shutdown()
		return nil
	case err := <-s.sockets.fatal:
		return err
	}
}

// warmUp looks at the types of the first start and the first exec before these do.
func warmUp() {
	codec.JSON(specs.Spec{}, record.Container{}, record.Exec{}, protocol.Packet{})
	codec.Messages(protocol.Usual...)
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
	s.sockets.server = rpc
	api.RegisterKeeperService(rpc, &service{s: s})
	// The server closes its listener when it shuts down; the socket itself outlives that for an upgrade.
	f, err := s.sockets.rpc.File()
	if err != nil {
		return err
	}
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	s.sockets.serving.Go(func() {
		if err := rpc.Serve(context.Background(), l); err != nil && !errors.Is(err, ttrpc.ErrServerClosed) {
			s.fail(fmt.Errorf("serve %s: %w", protocol.RPCSocket, err))
		}
	})
	s.sockets.serving.Go(s.acceptSessions)
	return nil
}

func (s *Server) fail(err error) {
	select {
	case s.sockets.fatal <- err:
	default:
	}
}

// disconnect sends all answers and closes all connections. The sockets keep queueing new connections.
func (s *Server) disconnect() {
	deadline := time.Now().Add(disconnectWait)
	for time.Now().Before(deadline) {
		// Shutdown looks at its connections only now and then; calling it anew makes it look.
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		err := s.sockets.server.Shutdown(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	s.sockets.server.Close()
	_ = s.sockets.fds.SetDeadline(time.Unix(1, 0))
	s.sockets.serving.Wait()
	_ = s.sockets.fds.SetDeadline(time.Time{})
	for _, ses := range s.sessions.All() {
		ses.Drained(disconnectWait)
		ses.Close()
	}
}
