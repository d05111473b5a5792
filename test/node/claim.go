package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// machine is what the nodes of all processes change together.
var machine = claims{path: "/run/berth-test-host"}

// claims puts a machine back as the first node found it when the last one stops. The nodes may be of several processes:
// each has a shared lock of the file, in which is written how the machine was, while it has any. What a process
// that was killed has noted counts on.
type claims struct {
	path string

	mu   sync.Mutex
	held int      // nodes of this process
	lock *os.File // open while there are any
}

// claim is called before a node changes anything.
func (c *claims) claim() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == 0 {
		lock, err := c.open()
		if err != nil {
			return fmt.Errorf("note how the machine is: %w", err)
		}
		c.lock = lock
	}
	c.held++
	return nil
}

// open returns the file with a shared lock and a note in it.
func (c *claims) open() (lock *os.File, err error) {
	for {
		if lock, err = os.OpenFile(c.path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600); err != nil {
			return nil, err
		}
		first := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
		if !first {
			err = unix.Flock(int(lock.Fd()), unix.LOCK_SH)
		}
		var now unix.Stat_t
		if err == nil {
			err = unix.Fstat(int(lock.Fd()), &now)
		}
		if err == nil && now.Nlink > 0 {
			if first && now.Size == 0 {
				err = note(lock)
			}
			if err == nil {
				err = unix.Flock(int(lock.Fd()), unix.LOCK_SH)
			}
			if err == nil {
				return lock, nil
			}
		}
		lock.Close()
		if err != nil {
			return nil, err
		}
		// The last node of another process has removed the file meanwhile.
	}
}

func note(to io.Writer) error {
	host, err := ReadHost()
	if err != nil {
		return err
	}
	return json.NewEncoder(to).Encode(host)
}

// PutBack undoes what nodes of killed processes have changed of the machine, if no node is running, so that nobody
// takes it for how the machine was.
func PutBack() error { return machine.settle() }

func (c *claims) settle() error {
	if err := c.claim(); err != nil {
		return err
	}
	return c.release()
}

// release is called when a node has stopped.
func (c *claims) release() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held--; c.held > 0 {
		return nil
	}
	defer func() {
		c.lock.Close()
		c.lock = nil
	}()
	switch err := unix.Flock(int(c.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil // not the last
	case err != nil:
		return &os.PathError{Op: "flock", Path: c.path, Err: err}
	}
	var was Host
	_, err := c.lock.Seek(0, io.SeekStart)
	if err == nil {
		err = json.NewDecoder(c.lock).Decode(&was)
	}
	if err == nil {
		err = was.Restore()
	}
	return errors.Join(err, os.Remove(c.path))
}
