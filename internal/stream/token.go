package stream

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/audit"
)

const (
	// tokenBytes of randomness are more than anybody can guess in the life of a token.
	tokenBytes = 24
	// maxTokens bounds the addresses that were asked for and not used yet.
	maxTokens = 4096
)

// tokens keeps requests until their clients connect. Each can be taken once.
type tokens struct {
	ttl time.Duration

	mu      sync.Mutex // guards pending
	pending map[string]entry
}

type entry struct {
	request any
	by      *audit.Peer // who has asked for the address; nil: nobody knows
	expires time.Time
}

// put keeps a request of a peer and returns its token. The error wraps errdefs.ErrResourceExhausted.
func (t *tokens) put(request any, by *audit.Peer) (string, error) {
	raw := make([]byte, tokenBytes)
	rand.Read(raw) // never fails, see its documentation
	token := base64.RawURLEncoding.EncodeToString(raw)
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.pending) >= maxTokens {
		for old, e := range t.pending {
			if now.After(e.expires) {
				delete(t.pending, old)
			}
		}
	}
	if len(t.pending) >= maxTokens {
		return "", fmt.Errorf("%d streams were asked for and not connected to: %w", maxTokens, errdefs.ErrResourceExhausted)
	}
	t.pending[token] = entry{request: request, by: by, expires: now.Add(t.ttl)}
	return token, nil
}

// take returns the request of a token, which is worth nothing from then on.
func (t *tokens) take(token string) (entry, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.pending[token]
	delete(t.pending, token)
	if !ok || time.Now().After(e.expires) {
		return entry{}, false
	}
	return e, true
}
