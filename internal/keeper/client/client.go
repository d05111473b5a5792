package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	api "berth/api/keeper"
	"berth/internal/keeper/protocol"
	"berth/internal/rawenv"
)

// Config says where the keeper is reached, and how one is started.
type Config struct {
	Dir    string // the keeper's directory, absolute
	Binary string // berth-keeper; empty: one is only connected to, never started
	Await  bool   // a service manager starts it: where none listens yet, wait for it
	// Args returns further arguments for a keeper that is started; nil: there are none.
	Args func() []string
	// NoEscrow has the keeper put nothing into escrow here: for tools that look in beside a daemon that holds it. Input
	// does not work then.
	NoEscrow bool
	// EscrowAfter is closed when what the keeper has may be taken into escrow; nil: at once. A second after the connection
	// was made it is taken in any case. With a thousand pods it takes both programs as long as all else of berthd's start.
	EscrowAfter <-chan struct{}
	Logger      *slog.Logger
}

// Client talks to the keeper of one directory and holds in escrow what would be lost with it: when the keeper dies, a
// new one is started and everything is handed back. Calls made meanwhile wait for that, as long as their contexts do.
type Client struct {
	cfg     Config
	log     *slog.Logger
	session string // the same for as long as this client lives
	escrow  escrow
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu         sync.Mutex
	conn       *connection         // nil: none at the moment
	changed    chan struct{}       // closed when conn changes
	generation string              // of the keeper last talked to
	lastErr    error               // why there is no connection
	cutOff     map[string][]string // nonces of Run calls whose caller no longer waits, by the container's ID
	consoles   map[string]*os.File // nil: there was no room for it
	awaited    map[string]int      // calls that wait for a console, by its ID; a console of no call is closed
	arrived    chan struct{}       // closed when a console arrives
	killed     chan struct{}       // see Killed
}

// connection is one life of the two sockets.
type connection struct {
	rpc    *ttrpc.Client
	api    api.KeeperClient
	fds    *protocol.Conn
	closed chan struct{}
	once   sync.Once
	// received is closed when all that the keeper had sent has been taken.
	received chan struct{}
	keeper   *api.InfoResponse // the keeper at the other end, as it was when the connection was made
}

// require returns an error if the keeper is too old to support what a request asks for.
func (c *connection) require(feature, what string) error {
	if slices.Contains(c.keeper.GetFeatures(), feature) {
		return nil
	}
	return fmt.Errorf("the keeper that runs (version %s, process %d) is too old for %s and would ignore it; "+
		"let it execute the installed version (systemctl reload berth-keeper): %w",
		c.keeper.GetVersion(), c.keeper.GetPid(), what, errdefs.ErrFailedPrecondition)
}

// requireRawEnv returns an error if the process has variables that are not UTF-8, and the keeper is too old for them.
func (c *connection) requireRawEnv(p *specs.Process) error {
	if p == nil || rawenv.Of(p.Env) == nil {
		return nil
	}
	return c.require(protocol.FeatureRawEnv, "an environment variable that is not UTF-8")
}

// newConnection takes both sockets over.
func newConnection(rpc net.Conn, fds *protocol.Conn) *connection {
	c := &connection{fds: fds, closed: make(chan struct{}), received: make(chan struct{})}
	made := make(chan struct{})
	closed := func() {
		<-made // a keeper that is killed just now may end the client before NewClient has returned it
		c.close()
	}
	c.rpc = ttrpc.NewClient(rpc, ttrpc.WithOnClose(func() { go closed() }))
	c.api = api.NewKeeperClient(c.rpc)
	close(made)
	return c
}

// lastWait bounds how long a connection that ends may take to bring what the keeper has sent. A dead keeper's is there
// at once.
const lastWait = 2 * time.Second

func (c *connection) close() {
	c.once.Do(func() {
		close(c.closed)
		c.rpc.Close()
		c.fds.Finish(lastWait)
	})
}

// Connect connects to the keeper in cfg.Dir and starts one where none answers.
func Connect(ctx context.Context, cfg Config) (*Client, error) {
	if !filepath.IsAbs(cfg.Dir) {
		return nil, fmt.Errorf("keeper's directory %q is not absolute: %w", cfg.Dir, errdefs.ErrInvalidArgument)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	c := &Client{
		cfg: cfg, log: cfg.Logger, session: rand.Text(), changed: make(chan struct{}),
		consoles: map[string]*os.File{}, awaited: map[string]int{}, arrived: make(chan struct{}),
		killed: make(chan struct{}),
	}
	if !cfg.NoEscrow {
		warnOfFewDescriptors(cfg.Logger)
	}
	c.escrow.init()
	c.ctx, c.cancel = context.WithCancel(context.Background())
	conn, err := c.connect(ctx)
	if err != nil {
		c.cancel()
		c.escrow.close()
		return nil, err
	}
	c.set(conn, nil)
	c.running.Go(func() { c.supervise(conn) })
	return c, nil
}

// warnOfFewDescriptors says how many containers the limit of this process lets it keep, if those are fewer than a node
// has.
func warnOfFewDescriptors(log *slog.Logger) {
	const node = 1000
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil && protocol.Containers(limit.Cur) < node {
		log.Warn("RLIMIT_NOFILE is low: what would begin beyond it is refused", "descriptors", limit.Cur,
			"containers", protocol.Containers(limit.Cur))
	}
}

// Close ends the connection. The keeper and all containers keep running. Descriptors that this process held in escrow
// are closed.
func (c *Client) Close() error {
	c.cancel()
	c.mu.Lock()
	conn := c.conn
	c.mu.Unlock()
	if conn != nil {
		conn.close()
	}
	c.running.Wait()
	c.escrow.close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.consoles {
		if f != nil {
			f.Close()
		}
	}
	c.consoles = nil
	return nil
}

func (c *Client) set(conn *connection, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn, c.lastErr = conn, err
	close(c.changed)
	c.changed = make(chan struct{})
}

// supervise connects anew whenever the connection breaks.
func (c *Client) supervise(conn *connection) {
	for {
		select {
		case <-conn.closed:
		case <-c.ctx.Done():
			conn.close()
			return
		}
		c.set(nil, errors.New("connection broken"))
		// The sockets break together, and the last things that a dead keeper put into escrow may lie in the other one.
		<-conn.received
		said := ""
		for pause := time.Millisecond; ; pause = min(2*pause, time.Second) {
			next, err := c.connect(c.ctx)
			if err == nil {
				conn = next
				c.set(conn, nil)
				break
			}
			if c.ctx.Err() != nil {
				return
			}
			if said != err.Error() { // once, though the keeper may be stopped for days
				said = err.Error()
				c.log.Error("connect to keeper", "directory", c.cfg.Dir, "error", err)
			}
			c.set(nil, err)
			select {
			case <-time.After(pause):
			case <-c.ctx.Done():
				return
			}
		}
	}
}

// dialWait bounds how long a keeper may take from its start, or over an upgrade, until it answers.
const dialWait = 15 * time.Second

// connect connects, starts a keeper where none listens, and hands back what a dead one has lost.
func (c *Client) connect(ctx context.Context) (*connection, error) {
	ctx, cancel := context.WithTimeout(ctx, dialWait)
	defer cancel()
	var starter starter
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		conn, err := c.dial(ctx)
		if err == nil {
			return conn, nil
		}
		absent := errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) || errors.Is(err, errKilled)
		if !absent && !broken(err) && !errors.Is(err, errdefs.ErrUnavailable) {
			return nil, err
		}
		if absent {
			if c.cfg.Binary == "" && !c.cfg.Await {
				return nil, fmt.Errorf("no keeper answers in %s: %w: %w", c.cfg.Dir, err, errdefs.ErrUnavailable)
			}
			if c.cfg.Binary != "" {
				if serr := starter.start(c.cfg); serr != nil {
					return nil, serr
				}
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, fmt.Errorf("keeper in %s does not answer: %w: %w", c.cfg.Dir, errors.Join(err, starter.failure()),
				errdefs.ErrUnavailable)
		}
	}
}

// dial makes both connections and hands back what the keeper lacks.
func (c *Client) dial(ctx context.Context) (_ *connection, err error) {
	raw, err := protocol.Dial("unixpacket", c.cfg.Dir, protocol.FDsSocket)
	if err != nil {
		return nil, err
	}
	fds := protocol.NewConn(raw)
	defer func() {
		if err != nil {
			fds.Close()
		}
	}()
	pid, err := protocol.Peer(raw)
	if err != nil {
		return nil, err
	}
	if wasKilled(pid) {
		return nil, fmt.Errorf("keeper %d: %w", pid, errKilled)
	}
	hello := &protocol.Packet{Kind: protocol.Hello, Session: c.session, Escrow: !c.cfg.NoEscrow}
	if err := fds.Send(hello); err != nil {
		return nil, err
	}
	if d, ok := ctx.Deadline(); ok {
		_ = fds.SetDeadline(d)
	}
	welcome, err := fds.Receive()
	if err != nil {
		return nil, err
	}
	welcome.CloseFiles()
	if welcome.Kind != protocol.Welcome {
		return nil, fmt.Errorf("keeper says %q instead of welcome", welcome.Kind)
	}
	_ = fds.SetDeadline(time.Time{})
	rpc, err := protocol.Dial("unix", c.cfg.Dir, protocol.RPCSocket)
	if err != nil {
		return nil, err
	}
	conn := newConnection(rpc, fds)

	c.mu.Lock()
	if c.generation == "" {
		// What is held from now on is this keeper's, and due to the next one, even if this one is killed at once.
		c.generation = welcome.Generation
	}
	same := c.generation == welcome.Generation
	c.mu.Unlock()
	var back []escrowed
	if !same {
		back = c.escrow.all()
	}
	c.escrow.beginSync(same)
	c.running.Go(func() { c.receive(conn) })
	c.running.Go(func() { c.watch(conn, pid) })
	if err := c.greet(ctx, conn, back); err != nil {
		conn.close()
		<-conn.received // what the keeper has put into escrow by now is due to the next one
		return nil, err
	}
	c.mu.Lock()
	c.generation = welcome.Generation
	c.mu.Unlock()
	return conn, nil
}

// greet asks the keeper who it is, and hands back what it lacks. That is due until all of it was handed back: after an
// error it is begun anew, with this keeper or the next one.
func (c *Client) greet(ctx context.Context, conn *connection, back []escrowed) (err error) {
	if conn.keeper, err = conn.api.Info(ctx, &api.InfoRequest{}); err != nil {
		return err
	}
	if len(back) > 0 {
		c.log.Warn("keeper restarted; what was in escrow is handed back to the new process",
			"directory", c.cfg.Dir, "items", len(back))
	}
	for _, k := range back {
		if err := c.handBack(ctx, conn, k); err != nil {
			return fmt.Errorf("hand back %s: %w", k.id, err)
		}
	}
	if !c.cfg.NoEscrow {
		_, err = conn.api.Adopted(ctx, &api.Empty{})
	}
	return protocol.Decode(err)
}

// handBack gives one container or exec to a keeper that does not know it.
func (c *Client) handBack(ctx context.Context, conn *connection, k escrowed) error {
	token := rand.Text()
	there, err := c.escrow.lend(k.id, func(roles []protocol.Role, fds []int) error {
		return conn.fds.Send(&protocol.Packet{Kind: protocol.Files, Token: token, Roles: roles, FDs: fds})
	})
	if err != nil || !there { // the keeper has dropped it by itself
		return err
	}
	_, err = conn.api.Adopt(ctx, &api.AdoptRequest{Record: k.record, Token: token})
	switch err = protocol.Decode(err); {
	case err == nil:
		c.escrow.known(k.id)
	case broken(err), errors.Is(err, errdefs.ErrUnavailable), ctx.Err() != nil,
		errors.Is(err, errdefs.ErrResourceExhausted): // the keeper ends, and the next one may have room
		return err
	default:
		// A record that the keeper refuses must not keep the others from being handed back.
		c.log.Error("the keeper refuses to take a container or exec back", "id", k.id, "error", err)
		if !errors.Is(err, errdefs.ErrNotFound) { // else its container has gone, and nothing can begin there
			c.escrow.refuse(k.id)
		}
	}
	return nil
}

// escrowHold bounds Config.EscrowAfter: the keeper ends the connection to a client that takes nothing for
// protocol.SendTimeout.
const escrowHold = time.Second

// holdBack waits for Config.EscrowAfter, or for the end of the connection: what a dead keeper has sent is due to the
// next.
func (c *Client) holdBack(conn *connection) {
	if c.cfg.EscrowAfter == nil {
		return
	}
	limit := time.NewTimer(escrowHold)
	defer limit.Stop()
	select {
	case <-c.cfg.EscrowAfter:
	case <-limit.C:
	case <-conn.closed:
	}
}

// receive takes what the keeper sends until the connection ends.
func (c *Client) receive(conn *connection) {
	defer close(conn.received)
	defer conn.fds.Close()
	defer conn.close()
	c.holdBack(conn)
	for {
		p, err := conn.fds.Receive()
		if err != nil {
			return
		}
		if p.Cut {
			c.log.Error("no room for the descriptors that the keeper has sent; they are not in escrow",
				"packet", p.Kind, "id", p.ID, "error", protocol.Room(protocol.RoomForContainer))
		}
		switch p.Kind {
		case protocol.Keep:
			c.escrow.keep(p)
		case protocol.Release:
			c.escrow.release(p.ID, p.Roles)
		case protocol.Synced:
			c.escrow.endSync()
		case protocol.Console:
			c.takeConsole(p)
		}
		p.CloseFiles()
	}
}

func (c *Client) takeConsole(p *protocol.Packet) {
	var f *os.File
	switch {
	case len(p.FDs) > 0:
		f = newFile(p.FDs[0], "console")
		p.FDs = p.FDs[1:]
	case !p.Cut:
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.consoles == nil || c.awaited[p.ID] == 0 {
		if f != nil {
			f.Close()
		}
		return
	}
	if old := c.consoles[p.ID]; old != nil {
		old.Close()
	}
	c.consoles[p.ID] = f
	close(c.arrived)
	c.arrived = make(chan struct{})
}

// awaitConsole has the terminal of an exec kept for console until the returned function is called. The keeper sends the
// terminal before the program begins, and an exec that fails after that, or whose caller gives up, leaves it behind: an
// open master keeps its terminal in the kernel, also when the container is gone.
func (c *Client) awaitConsole(id string) (done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.awaited[id]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.awaited[id]--; c.awaited[id] > 0 {
			return
		}
		delete(c.awaited, id)
		if f := c.consoles[id]; f != nil {
			f.Close()
		}
		delete(c.consoles, id)
	}
}

// console waits for the terminal of an exec that has started, between awaitConsole and the call of its function.
func (c *Client) console(ctx context.Context, id string) (*os.File, error) {
	for {
		c.mu.Lock()
		f, ok := c.consoles[id]
		arrived := c.arrived
		delete(c.consoles, id)
		c.mu.Unlock()
		switch {
		case f != nil:
			return f, nil
		case ok:
			return nil, fmt.Errorf("terminal of exec %s: this process has no room for it (RLIMIT_NOFILE): %w", id,
				errdefs.ErrResourceExhausted)
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return nil, fmt.Errorf("terminal of exec %s: %w", id, ctx.Err())
		}
	}
}

// wait returns the connection, once there is one.
func (c *Client) wait(ctx context.Context) (*connection, error) {
	for {
		c.mu.Lock()
		conn, changed, last := c.conn, c.changed, c.lastErr
		c.mu.Unlock()
		if conn != nil {
			return conn, nil
		}
		select {
		case <-changed:
		case <-c.ctx.Done():
			return nil, fmt.Errorf("keeper's client is closed: %w", errdefs.ErrUnavailable)
		case <-ctx.Done():
			return nil, fmt.Errorf("keeper in %s: %w: %w", c.cfg.Dir, ctx.Err(), errors.Join(last, errdefs.ErrUnavailable))
		}
	}
}

// call makes a call, and makes it again when the connection breaks or the keeper is being upgraded. That is right for
// calls that are idempotent or carry a nonce.
func (c *Client) call(ctx context.Context, fn func(*connection) error) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		conn, err := c.wait(ctx)
		if err != nil {
			return err
		}
		err = protocol.Decode(fn(conn))
		if err == nil || ctx.Err() != nil {
			return err
		}
		switch {
		case broken(err):
			conn.close()
			c.dropped(conn)
		case errors.Is(err, errdefs.ErrUnavailable):
		default:
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// dropped makes later calls wait for the next connection though the supervisor has not seen yet that this one is gone.
func (c *Client) dropped(conn *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == conn {
		c.conn = nil
		c.lastErr = errors.New("connection broken")
	}
}

// broken says whether an error is that of a connection and not of a call.
func broken(err error) bool {
	for _, e := range []error{
		ttrpc.ErrClosed, ttrpc.ErrStreamClosed, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed,
		syscall.EPIPE, syscall.ECONNRESET, syscall.ECONNREFUSED,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
