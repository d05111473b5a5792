package client

import (
	"errors"
	"time"

	"berth/internal/keeper/pidfd"
)

// killedLook is how often the client looks whether the keeper was killed without the end of its connections.
const killedLook = time.Second

// errKilled is the error of a keeper that was killed and does not end. The kernel keeps its sockets, which nobody will
// ever serve.
var errKilled = errors.New("it was killed and does not end: a thread waits for a file system that does not answer")

// wasKilled says whether the keeper with this process ID will never answer again; 0: this process cannot see it.
func wasKilled(pid int) bool { return pid > 0 && pidfd.Killed(pid) }

// watch ends the connection to a keeper that was killed. The kernel ends it only when all threads of the keeper have
// ended, and one of them may wait for a file system that does not answer. watch returns when the connection ends.
func (c *Client) watch(conn *connection, pid int) {
	look := time.NewTicker(killedLook)
	defer look.Stop()
	for {
		select {
		case <-conn.closed:
			return
		case <-look.C:
		}
		if wasKilled(pid) {
			c.log.Warn("the connection to the keeper is ended", "pid", pid, "error", errKilled)
			conn.close()
			c.mu.Lock()
			close(c.killed)
			c.killed = make(chan struct{})
			c.mu.Unlock()
			return
		}
	}
}

// Killed returns a channel that is closed when the keeper was killed and does not end. Until it ends, it keeps open
// what it was given: the end of the output of an attached client does not come from it.
func (c *Client) Killed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.killed
}
