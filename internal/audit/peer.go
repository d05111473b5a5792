package audit

import "context"

// Peer is who asked for something.
type Peer struct {
	PID uint32 `json:"pid,omitempty"` // when it connected, in berthd's PID namespace
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
	// Program is the path of what the process ran when it connected; empty: it could not be read.
	Program string `json:"program,omitempty"`
	// Client is the address of who connected to a stream that the peer has asked for: an API server through a kubelet.
	Client string `json:"client,omitempty"`
}

// At is the peer with the address of who has connected for it. It is nil where the peer is.
func (p *Peer) At(client string) *Peer {
	if p == nil {
		return nil
	}
	with := *p
	with.Client = client
	return &with
}

type peerKey struct{}

// WithPeer returns a context of a peer.
func WithPeer(ctx context.Context, p *Peer) context.Context {
	return context.WithValue(ctx, peerKey{}, p)
}

// PeerOf returns the peer of a context; nil: nobody knows.
func PeerOf(ctx context.Context) *Peer {
	p, _ := ctx.Value(peerKey{}).(*Peer)
	return p
}
