package image

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/image/registry"
)

func TestARegistryThatSaysNothingIsGivenUp(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // connections are made, and nobody takes them
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	store, err := Open(t.Context(), Config{
		Children: testChildren(t), Root: t.TempDir(),
		Settings: Settings{
			Retry: registry.Retry{Attempts: 2, Backoff: time.Millisecond, Stall: 100 * time.Millisecond},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err = store.Pull(ctx, PullRequest{Ref: listener.Addr().String() + "/silent:1"})
	if ctx.Err() != nil {
		t.Fatal("the pull went on until its caller gave up")
	}
	wantErr(t, err, errdefs.ErrUnavailable, listener.Addr().String())
}
