package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	"berth/internal/cri"
)

// secondTry is how long after a failure the second socket is tried again.
const secondTry = 5 * time.Second

// serveSecond serves the same on a second socket, where the configuration names one, until the server stops; done is
// closed then. When it returns, the socket is there, or could not be had, such as while containerd answers on it: the
// log says so, and it is tried again. Pods do not wait for it.
func serveSecond(
	ctx context.Context, server *grpc.Server, address string, gid int, log *slog.Logger,
) (done <-chan struct{}) {
	end := make(chan struct{})
	if address == "" {
		close(end)
		return end
	}
	listener, err := cri.Listen(address, gid)
	go func() {
		defer close(end)
		for problem := ""; ; listener, err = cri.Listen(address, gid) {
			if err == nil {
				log.Info("containerd_address is served", "address", address)
				problem, err = "", cri.Serve(server, listener, address, gid, log)
			}
			if err == nil || errors.Is(err, grpc.ErrServerStopped) || ctx.Err() != nil {
				return
			}
			if err.Error() != problem {
				log.Error("containerd_address cannot be served: it is tried again", "address", address, "error", err)
			}
			problem = err.Error()
			select {
			case <-ctx.Done():
				return
			case <-time.After(secondTry):
			}
		}
	}()
	return end
}

// nodeUUID tells this node's Berth from others, and is the same after a restart.
func nodeUUID(root string) string {
	id, _ := os.ReadFile("/etc/machine-id") // a node that has none is told from others by its root alone
	return uuid.NewSHA1(uuid.Nil, append(id, root...)).String()
}
