package stage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// link is the keeper's end of the socket to a stage. The kernel says of each report which process has sent
// it (SCM_CREDENTIALS, unix(7)): a container whose processes may trace others can take a copy of a stage's descriptor
// (pidfd_getfd(2)), but it cannot speak as that stage.
type link struct {
	file *os.File
	raw  syscall.RawConn
}

// report is one message of a stage (struct stage_status).
type report struct{ Step, Value, Operation int32 }

const reportSize = 12

// newLink makes a link, and the stage's end of it.
func newLink() (ours *link, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "keeper")
	err = unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	if err == nil {
		err = unix.SetNonblock(fds[0], true)
	}
	l := &link{file: os.NewFile(uintptr(fds[0]), "stage")}
	if err == nil {
		l.raw, err = l.file.SyscallConn()
	}
	if err != nil {
		l.file.Close()
		theirs.Close()
		return nil, nil, fmt.Errorf("make a socket for a stage: %w", err)
	}
	return l, theirs, nil
}

func (l *link) Close() error { return l.file.Close() }

// interrupt ends a receive, this one or the next.
func (l *link) interrupt() { _ = l.file.SetReadDeadline(time.Unix(1, 0)) }

// receive waits for the next report and says who has sent it. It is io.EOF when no process has the other end any more,
// and os.ErrDeadlineExceeded when it was interrupted.
func (l *link) receive() (sender int, r report, err error) {
	var rerr error
	err = l.raw.Read(func(fd uintptr) bool {
		sender, r, rerr = receive(int(fd))
		return !errors.Is(rerr, unix.EAGAIN)
	})
	return sender, r, errors.Join(err, rerr)
}

// receiveNow is receive without waiting: unix.EAGAIN where there is no report.
func (l *link) receiveNow() (sender int, r report, err error) {
	cerr := l.raw.Control(func(fd uintptr) { sender, r, err = receive(int(fd)) })
	return sender, r, errors.Join(cerr, err)
}

func receive(fd int) (sender int, r report, err error) {
	var data [reportSize]byte
	var oob [32]byte // no room for descriptors: the kernel closes those that somebody sends along
	var n, oobn, flags int
	for {
		n, oobn, flags, _, err = unix.Recvmsg(fd, data[:], oob[:unix.CmsgSpace(unix.SizeofUcred)], unix.MSG_CMSG_CLOEXEC)
		// ECONNRESET: the other end has gone without reading all. What it sent itself comes next.
		if err != unix.EINTR && err != unix.ECONNRESET {
			break
		}
	}
	switch {
	case err != nil:
		return 0, r, os.NewSyscallError("recvmsg", err)
	case n == 0:
		return 0, r, io.EOF
	case flags&unix.MSG_TRUNC != 0: // descriptors that are cut off (MSG_CTRUNC) are not wanted anyway
		return 0, r, fmt.Errorf("a stage's report has more than %d bytes", reportSize)
	case n != reportSize:
		return 0, r, fmt.Errorf("a stage's report has %d bytes", n)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return 0, r, err
	}
	for i := range messages {
		if c, err := unix.ParseUnixCredentials(&messages[i]); err == nil {
			sender = int(c.Pid)
		}
	}
	e := binary.NativeEndian
	return sender, report{int32(e.Uint32(data[0:])), int32(e.Uint32(data[4:])), int32(e.Uint32(data[8:]))}, nil
}

// release lets a waiting stage continue. The error is unix.EPIPE if no process has the other end any more.
func (l *link) release() error {
	var werr error
	err := l.raw.Write(func(fd uintptr) bool {
		werr = unix.Sendto(int(fd), []byte{0}, unix.MSG_NOSIGNAL, nil)
		return werr != unix.EAGAIN
	})
	return errors.Join(err, os.NewSyscallError("sendto", werr))
}
