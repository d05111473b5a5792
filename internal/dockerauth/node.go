package dockerauth

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/distribution/reference"

	"berth/internal/model"
)

// Node has the credentials of a node in a file. The file is read for each image, so that a change of it counts from the
// next one on. It is safe for concurrent use.
type Node struct {
	path string
	log  *slog.Logger

	mu   sync.Mutex
	told bool // that others may read the file; told again once it was otherwise
}

// NewNode is for the file at a path, which need not be there yet.
func NewNode(path string, log *slog.Logger) *Node { return &Node{path: path, log: log} }

// Find returns the credentials for an image; nil where there are none. A file that is not there, or that cannot be
// used, is an error: without credentials another image than the one that is meant might be pulled, or none for a
// reason that misleads.
func (n *Node) Find(ctx context.Context, ref reference.Named) (*model.Auth, error) {
	file, err := ReadTrusted(n.path)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	open := file.ReadableByOthers()
	tell := open && !n.told
	n.told = open
	n.mu.Unlock()
	if tell {
		n.log.Warn("others than its owner may read the file of credentials", "path", n.path)
	}
	return file.Find(ctx, ref)
}

// Check says what would fail each pull, and what others may read.
func Check(path string) error {
	if path == "" {
		return nil
	}
	file, err := ReadTrusted(path)
	if err != nil {
		return err
	}
	if file.ReadableByOthers() {
		return fmt.Errorf("%s has the mode %#o: others than its owner may read it; it should be 0600", path, file.mode)
	}
	return file.CheckHelpers()
}
