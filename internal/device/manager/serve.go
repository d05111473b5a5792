package manager

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"

	"berth/internal/unixsocket"
)

// settle is how long the manager waits before it puts its socket back: who took it away may put one there, too.
const settle = time.Second

// Serve opens the socket that plugins register with, and opens it again where somebody removes it, until Close.
func (m *Manager) Serve() error {
	path := filepath.Join(m.cfg.Dir, SocketName)
	// As a kubelet makes it: the sockets of plugins are root's affair.
	if err := os.MkdirAll(m.cfg.Dir, 0o750); err != nil {
		return fmt.Errorf("directory of device plugins: %w", err)
	}
	// Another manager that lives keeps its plugins.
	err := unixsocket.CheckStale(path)
	if err == nil {
		err = m.removeSockets()
	}
	if err != nil {
		return fmt.Errorf("serve device plugins: %w", err)
	}
	listener, err := unixsocket.Listen(path, -1)
	if err != nil {
		return fmt.Errorf("serve device plugins: %w", err)
	}
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		err = watcher.Add(m.cfg.Dir)
	}
	if err != nil {
		listener.Close()
		return fmt.Errorf("watch %s: %w", m.cfg.Dir, err)
	}
	m.log.Info("device plugins can register", "socket", path)
	m.background.Go(func() {
		defer watcher.Close()
		m.keep(path, listener, watcher)
	})
	return nil
}

// removeSockets removes the sockets of plugins, as a kubelet does when it starts: for some plugins the removal of their
// own socket is the signal to register again. Others wait for the manager's socket to appear, so it comes afterwards:
// a socket that a plugin makes for it stays.
func (m *Manager) removeSockets() error {
	entries, err := os.ReadDir(m.cfg.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type() != fs.ModeSocket || e.Name() == SocketName {
			continue
		}
		path := filepath.Join(m.cfg.Dir, e.Name())
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			m.log.Warn("remove the socket of a device plugin", "socket", path, "error", err)
		}
	}
	return nil
}

// keep serves, and sees to it that there is a socket.
func (m *Manager) keep(path string, listener *unixsocket.Listener, watcher *fsnotify.Watcher) {
	serve := func(l *unixsocket.Listener) {
		m.background.Go(func() {
			if err := m.cfg.Server.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) &&
				m.ctx.Err() == nil && l.Stands() {
				m.log.Error("serve device plugins", "error", err)
			}
		})
	}
	serve(listener)
	check := time.NewTimer(settle)
	defer check.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case event := <-watcher.Events:
			if event.Name == path || event.Name == m.cfg.Dir {
				check.Reset(settle)
			}
		case err := <-watcher.Errors:
			m.log.Warn("watch the directory of device plugins", "error", err)
			check.Reset(settle)
		case <-check.C:
			if listener.Stands() {
				continue
			}
			next, err := m.reopen(path, watcher)
			if err != nil {
				m.log.Error("the socket of device plugins is gone and cannot be put back", "error", err)
				check.Reset(30 * settle)
				continue
			}
			m.log.Warn("the socket of device plugins was removed and is put back", "socket", path)
			listener.Close()
			listener = next
			serve(listener)
		}
	}
}

func (m *Manager) reopen(path string, watcher *fsnotify.Watcher) (*unixsocket.Listener, error) {
	if err := os.MkdirAll(m.cfg.Dir, 0o750); err != nil {
		return nil, err
	}
	if err := watcher.Add(m.cfg.Dir); err != nil {
		return nil, err
	}
	return unixsocket.Listen(path, -1)
}
