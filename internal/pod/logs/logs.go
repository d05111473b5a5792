// Package logs makes sure that no two containers write to the same log file.
package logs

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/containerd/errdefs"

	"berth/internal/disk"
	"berth/internal/pod/record"
)

// Claims keeps two containers that run from writing one log file: rotation and readers would take one's lines for the
// other's. Its methods may be called
// concurrently.
type Claims struct {
	mu      sync.Mutex
	writers map[string]string // logFile to container ID
	files   map[string]string // container ID to logFile
}

// New has no claims.
func New() *Claims { return &Claims{writers: map[string]string{}, files: map[string]string{}} }

// Claim makes the directory of a container's log, and keeps the log from others until Release. An empty path is no
// log. A log that another container writes is errdefs.ErrFailedPrecondition.
func (l *Claims) Claim(id, path string) error {
	if path == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return disk.Exhausted(fmt.Errorf("directory of the log of container %s: %w", record.ShortID(id), err))
	}
	file := logFile(path)
	l.mu.Lock()
	defer l.mu.Unlock()
	if other, taken := l.writers[file]; taken && other != id {
		return fmt.Errorf("start container %s: container %s writes the log %s: %w",
			record.ShortID(id), record.ShortID(other), path, errdefs.ErrFailedPrecondition)
	}
	l.writers[file], l.files[id] = id, file
	return nil
}

// Adopt notes that a container writes a log already.
func (l *Claims) Adopt(id, path string) {
	if path == "" {
		return
	}
	file := logFile(path)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writers[file], l.files[id] = id, file
}

// Release lets others write a container's log. It is idempotent.
func (l *Claims) Release(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if file := l.files[id]; l.writers[file] == id {
		delete(l.writers, file)
	}
	delete(l.files, id)
}

// logFile is a log's path without links: two paths may lead to one directory. The file itself is not opened through a
// link.
func logFile(path string) string {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return path
	}
	return filepath.Join(dir, filepath.Base(path))
}
