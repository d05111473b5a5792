package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/codec"
)

// Kind says what a packet is for.
type Kind string

const (
	Hello   Kind = "hello"   // client: Session, Escrow
	Welcome Kind = "welcome" // keeper: Generation
	Files   Kind = "files"   // client: Token, and the files in the order of Roles
	Console Kind = "console" // keeper: ID is container/exec, and the terminal's master
	Keep    Kind = "keep"    // keeper: into escrow, ID, Record and the files in the order of Roles
	Release Kind = "release" // keeper: Roles of ID do not belong into escrow any more; no Roles: all of ID
	Synced  Kind = "synced"  // keeper: all records of its table have been put into escrow
)

// Role says what a descriptor is of its container or exec.
type Role string

const (
	RoleStdin   Role = "stdin"   // the write end
	RoleStdout  Role = "stdout"  // in escrow the read end, for an exec the process's own
	RoleStderr  Role = "stderr"  //
	RoleConsole Role = "console" // a terminal's master
	RolePidfd   Role = "pidfd"
	// What the keeper has read of a container's output and not written to its log: see logpump.Role.
	RoleStdoutMemory Role = "stdout-memory"
	RoleStdoutRelay  Role = "stdout-relay"
	RoleStderrMemory Role = "stderr-memory"
	RoleStderrRelay  Role = "stderr-relay"
)

// Packet is one message of fds.sock.
type Packet struct {
	Kind       Kind            `json:"kind"`
	Session    string          `json:"session,omitempty"`
	Escrow     bool            `json:"custody,omitempty"`
	Generation string          `json:"generation,omitempty"`
	Token      string          `json:"token,omitempty"`
	ID         string          `json:"id,omitempty"`
	Roles      []Role          `json:"roles,omitempty"`
	Record     json.RawMessage `json:"row,omitempty"`
	// FDs are raw descriptors. A receiver owns them; a sender keeps its own.
	FDs []int `json:"-"`
	// Cut: the receiver has no room for the descriptors (RLIMIT_NOFILE), and the kernel has closed what did not fit.
	// FDs is empty.
	Cut bool `json:"-"`
}

// CloseFiles closes the packet's descriptors.
func (p *Packet) CloseFiles() {
	for _, fd := range p.FDs {
		unix.Close(fd)
	}
	p.FDs = nil
}

const (
	maxPacket = 64 << 10
	maxFDs    = 8
	// SendTimeout: a peer that takes nothing for so long is stuck; it gets everything anew when it connects again.
	SendTimeout = 5 * time.Second
)

// Conn is a connection of fds.sock. Send may be called by several goroutines, Receive by one.
type Conn struct {
	c   *net.UnixConn
	mu  sync.Mutex // one writer at a time
	buf []byte
	oob []byte
}

// NewConn speaks packets over c, which is a SOCK_SEQPACKET socket.
func NewConn(c *net.UnixConn) *Conn {
	return &Conn{c: c, buf: make([]byte, maxPacket), oob: make([]byte, unix.CmsgSpace(maxFDs*4))}
}

// Close closes the connection.
func (c *Conn) Close() error { return c.c.Close() }

// Finish says that no more will be sent, and bounds the time in which what the peer has sent can still be received.
func (c *Conn) Finish(limit time.Duration) {
	_ = c.c.CloseWrite()
	_ = c.c.SetReadDeadline(time.Now().Add(limit))
}

// SetDeadline bounds Receive.
func (c *Conn) SetDeadline(t time.Time) error { return c.c.SetReadDeadline(t) }

// ErrPacket is the error of a packet that no connection can send. The connection is as it was before.
var ErrPacket = errors.New("packet cannot be sent")

// encode is a packet as it travels. The error is ErrPacket.
func (p *Packet) encode() (b, oob []byte, err error) {
	if b, err = codec.Marshal(p); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrPacket, err)
	}
	if len(b) > maxPacket || len(p.FDs) > maxFDs {
		return nil, nil, fmt.Errorf("%w: %s of %d bytes and %d descriptors is too large", ErrPacket, p.Kind, len(b),
			len(p.FDs))
	}
	if len(p.FDs) > 0 {
		oob = unix.UnixRights(p.FDs...)
	}
	return b, oob, nil
}

// TrySend is Send for a packet that the kernel takes at once. Else, and while another goroutine sends, nothing is sent.
func (c *Conn) TrySend(p *Packet) (sent bool, err error) {
	b, oob, err := p.encode()
	if err != nil {
		return false, err
	}
	if !c.mu.TryLock() {
		return false, nil
	}
	defer c.mu.Unlock()
	raw, err := c.c.SyscallConn()
	if err != nil {
		return false, err
	}
	var serr error
	err = raw.Control(func(fd uintptr) {
		for serr = unix.EINTR; serr == unix.EINTR; {
			serr = unix.Sendmsg(int(fd), b, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		}
	})
	switch {
	case err != nil:
		return false, err
	case serr == unix.EAGAIN:
		return false, nil
	}
	return serr == nil, os.NewSyscallError("sendmsg", serr)
}

// Send sends a packet. After an error other than ErrPacket the connection is of no more use.
func (c *Conn) Send(p *Packet) error {
	b, oob, err := p.encode()
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.c.SetWriteDeadline(time.Now().Add(SendTimeout)); err != nil {
		return err
	}
	_, _, err = c.c.WriteMsgUnix(b, oob, nil)
	return err
}

// Receive waits for a packet. The caller owns its descriptors, which are close-on-exec.
func (c *Conn) Receive() (*Packet, error) {
	n, oobn, flags, _, err := c.c.ReadMsgUnix(c.buf, c.oob)
	if errors.Is(err, unix.ECONNRESET) {
		// The peer died with something unread. The kernel says so once, and before it hands out what the peer had sent.
		n, oobn, flags, _, err = c.c.ReadMsgUnix(c.buf, c.oob)
	}
	if err != nil {
		return nil, err
	}
	if n == 0 && oobn == 0 {
		return nil, io.EOF
	}
	var p Packet
	if oobn > 0 {
		msgs, err := unix.ParseSocketControlMessage(c.oob[:oobn])
		if err != nil {
			return nil, fmt.Errorf("control message: %w", err)
		}
		for i := range msgs {
			if fds, err := unix.ParseUnixRights(&msgs[i]); err == nil {
				p.FDs = append(p.FDs, fds...)
			}
		}
	}
	if flags&unix.MSG_TRUNC != 0 {
		p.CloseFiles()
		return nil, errors.New("packet was cut off")
	}
	if flags&unix.MSG_CTRUNC != 0 {
		p.CloseFiles()
		p.Cut = true
	}
	if err := codec.Unmarshal(c.buf[:n], &p); err != nil {
		p.CloseFiles()
		return nil, fmt.Errorf("packet: %w", err)
	}
	return &p, nil
}
