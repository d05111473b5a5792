package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	api "berth/api/keeper"
	keeper "berth/internal/keeper/client"
	"berth/internal/keeper/protocol"
)

// scripted is a keeper that answers what a test tells it.
type scripted struct {
	api.KeeperService
	t          *testing.T
	generation string
	info       func() error // before the answer to Info
	adopt      func(record string) error
	exec       func(escrow func(p *protocol.Packet)) error
	signal     func(sig int32) error
	adopted    chan struct{} // gets something at each Adopted
	keep       []string      // IDs that it puts into escrow at once
	end        func()        // as a kill

	mu    sync.Mutex
	conns []*protocol.Conn
	kept  chan struct{} // gets something when all of keep has been sent to a client
}

func (k *scripted) serve(dir string) {
	k.t.Helper()
	k.adopted, k.kept = make(chan struct{}, 100), make(chan struct{}, 100)
	rpc, err := protocol.Listen("unix", dir, protocol.RPCSocket)
	if err != nil {
		k.t.Fatal(err)
	}
	fds, err := protocol.Listen("unixpacket", dir, protocol.FDsSocket)
	if err != nil {
		k.t.Fatal(err)
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		k.t.Fatal(err)
	}
	api.RegisterKeeperService(server, k)
	k.end = sync.OnceFunc(func() {
		rpc.Close()
		fds.Close()
		server.Close()
		k.mu.Lock()
		defer k.mu.Unlock()
		for _, c := range k.conns {
			c.Close()
		}
	})
	k.t.Cleanup(k.end)
	go func() { _ = server.Serve(context.Background(), rpc) }()
	go func() {
		for {
			c, err := fds.AcceptUnix()
			if err != nil {
				return
			}
			conn := protocol.NewConn(c)
			if _, err := conn.Receive(); err != nil {
				continue
			}
			k.mu.Lock()
			k.conns = append(k.conns, conn)
			k.mu.Unlock()
			_ = conn.Send(&protocol.Packet{Kind: protocol.Welcome, Generation: k.generation})
			for _, id := range k.keep {
				k.put(&protocol.Packet{ID: id, Record: fmt.Appendf(nil, `{"container":{"id":%q}}`, id)})
			}
			k.kept <- struct{}{}
			go func() {
				for p, err := conn.Receive(); err == nil; p, err = conn.Receive() {
					p.CloseFiles()
				}
				conn.Close()
			}()
		}
	}()
}

// put puts something into escrow, with a pipe for a pidfd.
func (k *scripted) put(p *protocol.Packet) {
	r, w, err := os.Pipe()
	if err != nil {
		k.t.Error(err)
		return
	}
	defer r.Close()
	defer w.Close()
	p.Kind, p.Roles, p.FDs = protocol.Keep, []protocol.Role{protocol.RolePidfd}, []int{int(r.Fd())}
	k.mu.Lock()
	defer k.mu.Unlock()
	_ = k.conns[len(k.conns)-1].Send(p)
}

func (k *scripted) Info(context.Context, *api.InfoRequest) (*api.InfoResponse, error) {
	<-k.kept // once for each connection, of which each asks once
	if k.info != nil {
		if err := k.info(); err != nil {
			return nil, err
		}
	}
	return &api.InfoResponse{Generation: k.generation}, nil
}

func (k *scripted) Adopt(_ context.Context, r *api.AdoptRequest) (*api.Empty, error) {
	var err error
	if k.adopt != nil {
		err = k.adopt(string(r.Record))
	}
	return &api.Empty{}, protocol.Encode(err)
}

func (k *scripted) Adopted(context.Context, *api.Empty) (*api.Empty, error) {
	k.adopted <- struct{}{}
	return &api.Empty{}, nil
}

func (k *scripted) Exec(context.Context, *api.ExecRequest) (*api.ExecResponse, error) {
	return &api.ExecResponse{Pid: 1}, protocol.Encode(k.exec(k.put))
}

func (k *scripted) Signal(_ context.Context, r *api.SignalRequest) (*api.Empty, error) {
	return &api.Empty{}, protocol.Encode(k.signal(r.Signal))
}

// scriptedDir is the directory of scripted keepers, and the configuration of their client.
func scriptedDir(t *testing.T) (string, keeper.Config) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "keeper")
	if err := protocol.MakeDir(dir); err != nil {
		t.Fatal(err)
	}
	return dir, keeper.Config{Dir: dir, Await: true, Logger: slog.New(slog.DiscardHandler)}
}

// TestAHandBackThatIsPutOffIsDue: a keeper that is about to execute another program takes nothing back. The client
// hands everything back to it again, and says before that to nobody that it has.
func TestAHandBackThatIsPutOffIsDue(t *testing.T) {
	dir, config := scriptedDir(t)
	first := &scripted{t: t, generation: "first", keep: []string{"a", "b"}}
	first.serve(dir)
	client, err := keeper.Connect(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	first.end()

	var mu sync.Mutex
	var refused int
	back := map[string]bool{}
	next := &scripted{t: t, generation: "next"}
	next.adopt = func(record string) error {
		mu.Lock()
		defer mu.Unlock()
		if refused < 3 {
			refused++
			return errdefs.ErrUnavailable
		}
		back[record] = true
		return nil
	}
	next.serve(dir)
	<-next.adopted
	mu.Lock()
	defer mu.Unlock()
	if len(back) != 2 {
		t.Errorf("after %d refusals, %d of 2 are back: %v", refused, len(back), back)
	}
}

// TestAKeeperThatIsKilledDuringTheFirstConnect: what it has put into escrow by then is handed back to the next one. It
// was taken for what the next one knows, since the client had talked to no keeper before.
func TestAKeeperThatIsKilledDuringTheFirstConnect(t *testing.T) {
	dir, config := scriptedDir(t)
	asked, over := make(chan struct{}, 10), make(chan struct{})
	defer close(over)
	first := &scripted{t: t, generation: "first", keep: []string{"a"}}
	first.info = func() error {
		asked <- struct{}{}
		<-over
		return errors.New("killed")
	}
	first.serve(dir)
	next := &scripted{t: t, generation: "next"}
	back := make(chan string, 10)
	next.adopt = func(record string) error {
		back <- record
		return nil
	}
	connected := make(chan error, 1)
	go func() {
		client, err := keeper.Connect(t.Context(), config)
		if err == nil {
			err = client.Close()
		}
		connected <- err
	}()
	<-asked
	first.end()
	next.serve(dir)
	if err := <-connected; err != nil {
		t.Fatal(err)
	}
	if len(back) != 1 {
		t.Errorf("%d things are handed back, and not the one that was in escrow", len(back))
	}
}

// TestAnExecThatIsNotTakenBackIsNotMadeAgain: its command may have run, and the keeper that it is asked of again does
// not know it. The client made it again, so that the command ran twice.
func TestAnExecThatIsNotTakenBackIsNotMadeAgain(t *testing.T) {
	dir, config := scriptedDir(t)
	begun, over := make(chan struct{}), make(chan struct{})
	defer close(over)
	first := &scripted{t: t, generation: "first"}
	first.exec = func(escrow func(*protocol.Packet)) error {
		escrow(&protocol.Packet{ID: "c/e", Record: []byte(`{"exec":{"containerID":"c","execID":"e"}}`)})
		close(begun)
		<-over
		return errors.New("killed")
	}
	first.serve(dir)
	client, err := keeper.Connect(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	exec := func() error {
		_, err := client.Exec(t.Context(), &keeper.ExecRequest{ContainerID: "c", ExecID: "e",
			Process: &specs.Process{Args: []string{"once"}}})
		return err
	}
	answer := make(chan error, 1)
	go func() { answer <- exec() }()
	<-begun
	first.end()

	ran := make(chan struct{}, 10)
	next := &scripted{t: t, generation: "next"}
	next.adopt = func(string) error { return errdefs.ErrInvalidArgument }
	next.exec = func(func(*protocol.Packet)) error { ran <- struct{}{}; return nil }
	next.serve(dir)
	if err := <-answer; !errors.Is(err, errdefs.ErrAborted) || len(ran) > 0 {
		t.Errorf("%v, ran %d times more", err, len(ran))
	}
	if err := exec(); err != nil || len(ran) != 1 {
		t.Errorf("another exec: %v, ran %d times", err, len(ran))
	}
}

// TestASignalIsSentOnceThoughTheKeeperDies right after it has sent one: some programs take a second SIGTERM, or a
// second signal of their own, for another order. It was sent again by the next keeper.
func TestASignalIsSentOnceThoughTheKeeperDies(t *testing.T) {
	for name, c := range map[string]struct {
		sig   syscall.Signal
		all   bool
		most  int // that the keepers are asked to send
		known bool
	}{
		"to all processes":                  {syscall.SIGUSR1, true, 1, false},
		"to a process that is not held":     {syscall.SIGUSR1, false, 1, false},
		"SIGKILL, of which any number goes": {syscall.SIGKILL, true, 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir, config := scriptedDir(t)
			asked, over := make(chan struct{}, 10), make(chan struct{})
			defer close(over)
			first := &scripted{t: t, generation: "first"}
			first.signal = func(sig int32) error {
				if sig == protocol.NoSignal {
					return nil
				}
				asked <- struct{}{}
				<-over
				return errors.New("killed")
			}
			first.serve(dir)
			client, err := keeper.Connect(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			answer := make(chan error, 1)
			go func() { answer <- client.Signal(t.Context(), "c", c.sig, c.all) }()
			<-asked
			first.end()
			again := make(chan struct{}, 10)
			next := &scripted{t: t, generation: "next"}
			next.signal = func(int32) error { again <- struct{}{}; return nil }
			next.serve(dir)
			if err := <-answer; errors.Is(err, errdefs.ErrAborted) == c.known || c.known && err != nil {
				t.Errorf("error %v", err)
			}
			if sent := 1 + len(again); sent != c.most {
				t.Errorf("sent %d times", sent)
			}
		})
	}
}
