package faults

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// manager plays systemd for a node's keeper: it starts it whenever it has ended, and has its file descriptor store
// (sd_pid_notify_with_fds(3)), whose descriptors it hands to the next one. It does not wait before a start,
// where the unit has RestartSec=1.
type manager struct {
	dir    string // the keeper's
	binary string
	socket *net.UnixConn
	log    *os.File
	wg     sync.WaitGroup // serve and run

	mu     sync.Mutex // guards what follows
	stored []storedFile
	synced map[string]chan struct{} // closed when the message of this name has been read
	pid    int                      // 0: none runs
	over   bool
}

type storedFile struct {
	name string
	file *os.File
}

// startManaged is a node whose keeper belongs to a service manager, as that of the units does.
func startManaged(t *testing.T) *node.Node {
	t.Helper()
	m := &manager{synced: map[string]chan struct{}{}}
	t.Cleanup(m.close)
	n := nodetest.Start(t, node.Options{Args: []string{"--keeper-binary", "none"}, Prepare: m.prepare})
	t.Cleanup(m.last) // before the node is stopped
	return n
}

func (m *manager) prepare(n *node.Node) error {
	m.dir, m.binary = filepath.Join(n.State, "keeper"), filepath.Join(n.Programs(), "berth-keeper")
	var err error
	if err = os.MkdirAll(m.dir, 0o700); err != nil {
		return err
	}
	m.socket, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(n.Dir, "notify"), Net: "unixgram"})
	if err != nil {
		return err
	}
	if m.log, err = os.OpenFile(filepath.Join(m.dir, "keeper.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND,
		0o600); err != nil {
		return err
	}
	m.wg.Go(m.serve)
	m.wg.Go(m.run)
	return nil
}

// serve reads what the keeper says.
func (m *manager) serve() {
	message, oob := make([]byte, 4096), make([]byte, 4096)
	for {
		n, oobn, _, _, err := m.socket.ReadMsgUnix(message, oob)
		if err != nil {
			return
		}
		var files []*os.File
		if controls, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil {
			for _, control := range controls {
				fds, _ := unix.ParseUnixRights(&control)
				for _, fd := range fds {
					unix.CloseOnExec(fd)
					files = append(files, os.NewFile(uintptr(fd), "stored"))
				}
			}
		}
		m.told(string(message[:n]), files)
	}
}

func (m *manager) told(message string, files []*os.File) {
	said := map[string]string{}
	for line := range strings.Lines(message) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		said[key] = value
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	name := said["FDNAME"]
	if name != "" {
		fmt.Fprintf(m.log, "the service manager: stored %s, removed %s, %d files, name %s\n", said["FDSTORE"],
			said["FDSTOREREMOVE"], len(files), name)
	}
	if said["FDSTORE"] == "1" {
		for _, file := range files {
			m.stored = append(m.stored, storedFile{name, file})
		}
		files = nil
	}
	if said["FDSTOREREMOVE"] == "1" {
		kept := m.stored[:0]
		for _, s := range m.stored {
			if s.name == name {
				s.file.Close()
			} else {
				kept = append(kept, s)
			}
		}
		m.stored = kept
	}
	if done := m.synced[said["SYNC"]]; done != nil {
		close(done)
		delete(m.synced, said["SYNC"])
	}
	for _, file := range files {
		file.Close()
	}
}

// run starts keepers, one after the other.
func (m *manager) run() {
	for i := 0; ; i++ {
		// What the last one has said comes first, as with systemd, which reads notifications before it looks for children
		// that ended.
		if !m.sync(fmt.Sprint("round", i)) {
			return
		}
		cmd, err := m.start()
		if err != nil {
			fmt.Fprintln(m.log, "the service manager cannot start a keeper:", err)
		}
		if err != nil || cmd == nil {
			return
		}
		err = cmd.Wait()
		fmt.Fprintln(m.log, "the service manager: a keeper ended:", err)
		m.mu.Lock()
		m.pid = 0
		m.mu.Unlock()
	}
}

// sync waits until all that was sent so far has been read.
func (m *manager) sync(name string) bool {
	done := make(chan struct{})
	m.mu.Lock()
	m.synced[name] = done
	m.mu.Unlock()
	conn, err := net.DialUnix("unixgram", nil, m.socket.LocalAddr().(*net.UnixAddr))
	if err != nil {
		return false
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("SYNC=" + name)); err != nil {
		return false
	}
	<-done
	return true
}

// start starts a keeper with what is stored; nil: no more.
func (m *manager) start() (*exec.Cmd, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return nil, nil
	}
	// LISTEN_PID is the process' own, which only the process itself knows before it is there.
	cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ exec "$@"`, "sh", m.binary, "--dir", m.dir)
	cmd.Dir, cmd.Stderr = "/", m.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+m.socket.LocalAddr().String())
	var names []string
	for _, s := range m.stored {
		cmd.ExtraFiles = append(cmd.ExtraFiles, s.file) // from 3 on, where LISTEN_FDS has them
		names = append(names, s.name)
	}
	if len(names) > 0 {
		cmd.Env = append(cmd.Env, fmt.Sprintf("LISTEN_FDS=%d", len(names)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	m.pid = cmd.Process.Pid
	fmt.Fprintf(m.log, "the service manager: started keeper %d with %d files: %s\n", m.pid, len(names),
		strings.Join(names, " "))
	return cmd, nil
}

// last has no keeper follow the one that runs.
func (m *manager) last() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over = true
}

// close ends all: the keeper too, where its node has not done so.
func (m *manager) close() {
	m.last()
	m.mu.Lock()
	if m.pid > 0 {
		_ = syscall.Kill(m.pid, syscall.SIGKILL)
	}
	for _, done := range m.synced {
		close(done)
	}
	m.synced = map[string]chan struct{}{}
	m.mu.Unlock()
	var err error
	if m.socket != nil {
		err = m.socket.Close()
	}
	m.wg.Wait()
	for _, s := range m.stored {
		err = errors.Join(err, s.file.Close())
	}
	if m.log != nil {
		err = errors.Join(err, m.log.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "the service manager of a test:", err)
	}
}
