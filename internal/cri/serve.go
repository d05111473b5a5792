package cri

import (
	"errors"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc"

	"berth/internal/unixsocket"
)

// socketCheck is how often the socket is looked for: a stat(2).
const socketCheck = 2 * time.Second

// Serve serves on a listener of Listen until the server stops. Where somebody has removed the socket, it is put back;
// connections that are there stay. One that another process has put in its place is left to that, which the log says.
func Serve(server *grpc.Server, listener net.Listener, address string, gid int, log *slog.Logger) error {
	own, ok := listener.(*unixsocket.Listener)
	if !ok {
		return server.Serve(listener) // systemd's, which looks after it
	}
	failed := make(chan error, 1)
	serve := func(l net.Listener) {
		if err := server.Serve(l); !errors.Is(err, net.ErrClosed) {
			select {
			case failed <- err:
			default: // another has failed before
			}
		}
	}
	go serve(own)
	tick := time.NewTicker(socketCheck)
	defer tick.Stop()
	for problem := ""; ; {
		select {
		case err := <-failed:
			return err
		case <-tick.C:
		}
		if own.Closed() || own.Stands() { // a server that stops waits for calls that are under way
			continue
		}
		next, err := Listen(address, gid)
		if err != nil {
			if err.Error() != problem {
				log.Error("the socket is gone and cannot be put back", "address", address, "error", err)
			}
			problem = err.Error()
			continue
		}
		log.Warn("the socket was removed from outside and is put back", "address", address)
		problem = ""
		old := own
		own, _ = next.(*unixsocket.Listener)
		go serve(own)
		old.Close()
	}
}
