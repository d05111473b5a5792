package life

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// gate is a connection from which its client reads nothing for some time.
type gate struct {
	net.Conn
	mu *sync.RWMutex // locked while nothing is read
}

func (g gate) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	g.mu.RLock()
	defer g.mu.RUnlock()
	return n, err
}

// TestAnswersThatNobodyReadsAreBounded: 20 commands write 16 MiB each, one after another, and their clients take the
// answers only when all commands have ended. What berthd holds for them meanwhile is bounded, and the bound is free
// again once the answers are read, or their clients have gone. Seen to fail where the bound ended with the call.
func TestAnswersThatNobodyReadsAreBounded(t *testing.T) {
	nodetest.BerthOnly(t, "containerd keeps 16 MiB of each command, whatever others have")
	n := nodetest.Start(t, node.Options{})
	c := nodetest.RunPod(t, n).Run()
	const commands, size = 20, 16<<20 - 4096
	if r, err := c.Exec(60, "head", "-c", fmt.Sprint(size), "/dev/zero"); err != nil || len(r.Stdout) != size {
		t.Fatalf("%d bytes, %v", len(r.GetStdout()), err)
	}
	for _, reads := range []bool{true, false} {
		var shut sync.RWMutex
		var sockets []net.Conn
		var clients []*grpc.ClientConn
		for range commands {
			conn, err := grpc.NewClient(n.Address, grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(32<<20)),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
					inner, err := (&net.Dialer{}).DialContext(ctx, "unix", n.Socket)
					sockets = append(sockets, inner) // each is made by its Version below
					return gate{inner, &shut}, err
				}))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := cri.NewRuntimeServiceClient(conn).Version(t.Context(), &cri.VersionRequest{}); err != nil {
				t.Fatal(err)
			}
			clients = append(clients, conn)
		}
		before := takenBy(t, n.PID()).memory
		shut.Lock()
		open := sync.OnceFunc(shut.Unlock)
		defer open() // before the clients are closed, which wait for their readers
		var all sync.WaitGroup
		var mu sync.Mutex
		whole := 0
		ctx, cancel := context.WithTimeout(nodetest.Context(t), node.Patience(2*time.Minute))
		defer cancel()
		for i, conn := range clients {
			done := fmt.Sprintf("/done-%v-%d", reads, i)
			all.Go(func() {
				r, err := cri.NewRuntimeServiceClient(conn).ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: c.ID, Timeout: 600,
					Cmd: []string{"sh", "-c", fmt.Sprintf("head -c %d /dev/zero; touch %s", size, done)}})
				mu.Lock()
				defer mu.Unlock()
				if err != nil && reads {
					t.Error(err)
				}
				if len(r.GetStdout()) == size {
					whole++
				}
			})
			nodetest.Eventually(t, time.Minute, "the command has ended", func() error {
				if r, err := c.Exec(60, "test", "-e", done); err != nil || r.ExitCode != 0 {
					return fmt.Errorf("%v, %w", r, err)
				}
				return nil
			})
		}
		time.Sleep(500 * time.Millisecond) // the last answer is on its way, and is looked for no longer than that
		more := takenBy(t, n.PID()).memory - before
		if !reads { // they go without having read
			cancel()
			for _, socket := range sockets[:commands/2] {
				socket.Close()
			}
		}
		open()
		all.Wait()
		t.Logf("clients that read: %v: berthd took %d MiB more for %d commands; %d answers were whole", reads, more>>20,
			commands, whole)
		if more > 160<<20 {
			t.Errorf("berthd took %d MiB", more>>20)
		}
		if reads && whole < 2 {
			t.Errorf("%d answers were whole", whole)
		}
		nodetest.Eventually(t, time.Minute, "there is as much room as before", func() error {
			for i := range 3 { // 48 MiB together, which is all but a little of what there is
				if r, err := c.Exec(60, "head", "-c", fmt.Sprint(size), "/dev/zero"); err != nil || len(r.Stdout) != size {
					return fmt.Errorf("command %d has %d bytes of output: %w", i, len(r.GetStdout()), err)
				}
			}
			return nil
		})
	}
}
