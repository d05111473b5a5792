// Package logs makes the directories of containers' logs, and makes sure that no two containers write to the same log
// file. A client chooses the directory, so its file system may not answer: package hostpath sees to it that berthd does
// not wait for it.
package logs

import (
	"fmt"
	"path/filepath"
	"sync"

	"github.com/containerd/errdefs"

	"berth/internal/hostpath"
	"berth/internal/pod/record"
)

// Claims keeps two containers that run from writing one log file: rotation and readers would take one's lines for the
// other's. Its methods may be called concurrently. A file is the path of a log without links: two paths may lead to one
// directory. The log itself is not opened through a link.
type Claims struct {
	root string // Berth's, on a file system that answers: see hostpath.MakeDir

	mu      sync.Mutex
	writers map[string]string // file to container ID
	files   map[string]string // container ID to file
}

// New has no claims. root is a directory of Berth's.
func New(root string) *Claims {
	return &Claims{root: root, writers: map[string]string{}, files: map[string]string{}}
}

// Claim makes the directory of a container's log, and keeps the log from others until Release. It returns the file,
// with which the next berthd calls Adopt. An empty path is no log. A log that another container writes is
// errdefs.ErrFailedPrecondition, and one whose file system does not answer is errdefs.ErrUnavailable.
func (l *Claims) Claim(id, path string) (file string, err error) {
	if path == "" {
		return "", nil
	}
	if file, err = l.MakeDir(path); err != nil {
		return "", fmt.Errorf("directory of the log: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if other, taken := l.writers[file]; taken && other != id {
		return "", fmt.Errorf("container %s writes the log %s: %w",
			record.ShortID(other), path, errdefs.ErrFailedPrecondition)
	}
	l.writers[file], l.files[id] = id, file
	return file, nil
}

// MakeDir makes the directory of a log, and returns the file. The error is errdefs.ErrUnavailable if the file system
// does not answer.
func (l *Claims) MakeDir(path string) (file string, err error) {
	dir, err := hostpath.MakeDir(l.root, filepath.Dir(path))
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, filepath.Base(path)), nil
}

// Adopt notes that a container writes a log already.
func (l *Claims) Adopt(id, file string) {
	if file == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writers[file], l.files[id] = id, file
}

// Correct changes the file of a claim, if the container still has one. Another container that has claimed the file
// meanwhile keeps it.
func (l *Claims) Correct(id, file string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, claimed := l.files[id]
	if !claimed || before == file {
		return
	}
	if l.writers[before] == id {
		delete(l.writers, before)
	}
	l.files[id] = file
	if _, taken := l.writers[file]; !taken {
		l.writers[file] = id
	}
}

// Known returns the file of a log, if the kernel has its directory in its cache. No file system is asked.
func Known(path string) (file string, ok bool) {
	dir, ok := hostpath.KnownDir(filepath.Dir(path))
	return filepath.Join(dir, filepath.Base(path)), ok
}

// File returns the file of a log. The error is errdefs.ErrUnavailable if the file system does not answer.
func File(path string) (string, error) {
	dir, err := hostpath.ResolveDir(filepath.Dir(path))
	return filepath.Join(dir, filepath.Base(path)), err
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
