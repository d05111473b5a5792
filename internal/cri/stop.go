package cri

import (
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

// Subscriptions are methods that end when the client or berthd does. What is to be told of their ends waits until the
// client reads, so a stop of berthd does not wait for them as for other calls.
var Subscriptions = map[string]bool{
	"/runtime.v1.RuntimeService/GetContainerEvents":       true,
	"/runtime.v1alpha2.RuntimeService/GetContainerEvents": true,
	"/berth.v1.Audit/Follow":                              true,
	"/containerd.services.events.v1.Events/Subscribe":     true,
	"/grpc.health.v1.Health/Watch":                        true,
}

// InFlight counts the calls that a server handles, without Subscriptions.
type InFlight struct{ n atomic.Int64 }

// add counts a call that begins (1) or ends (-1).
func (f *InFlight) add(method string, n int64) {
	if f != nil && !Subscriptions[method] {
		f.n.Add(n)
	}
}

// linger is how long clients may take to read answers when no call is handled any more.
const linger = time.Second

// Stop takes no more calls, lets those that are under way end for at most patience, and returns when the server has
// stopped. When no call is handled any more, clients have a second to read what they were sent: one that has subscribed
// to something and never reads would otherwise keep the server for all of patience.
func Stop(server *grpc.Server, calls *InFlight, patience time.Duration) {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		server.GracefulStop()
	}()
	const often = 20 * time.Millisecond
	tick := time.NewTicker(often)
	defer tick.Stop()
	end := time.Now().Add(patience)
	for unread := time.Duration(0); unread < linger && time.Now().Before(end); {
		select {
		case <-stopped:
			return
		case <-tick.C:
		}
		if unread += often; calls.n.Load() > 0 {
			unread = 0
		}
	}
	server.Stop()
	<-stopped
}
