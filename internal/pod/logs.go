package pod

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/containerd/errdefs"

	"berth/internal/pod/record"
)

// logs is which container writes which log file, so that no two that run write one. Its methods may be called
// concurrently.
type logs struct {
	mu      sync.Mutex
	writers map[string]string // logFile to container ID
	files   map[string]string // container ID to logFile
}

func newLogs() *logs { return &logs{writers: map[string]string{}, files: map[string]string{}} }

// claim makes the directory of a container's log, and keeps the log from others until release. An empty path is no
// log. A log that another container writes is errdefs.ErrFailedPrecondition.
func (l *logs) claim(id, path string) error {
	if path == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return record.NoSpace(fmt.Errorf("directory of the log of container %s: %w", record.ShortID(id), err))
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

// adopt notes that a container writes a log already.
func (l *logs) adopt(id, path string) {
	if path == "" {
		return
	}
	file := logFile(path)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writers[file], l.files[id] = id, file
}

// release lets others write a container's log. It is idempotent.
func (l *logs) release(id string) {
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
