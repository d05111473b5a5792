package child

import (
	"errors"

	"golang.org/x/sys/unix"

	"berth/internal/fileattr"
	"berth/internal/jail/wire"
)

// Xattrs has the jail make all calls on extended attributes. So the child can set attributes that only the host's
// administrator may set, and those of files that can only be opened with O_PATH. What it lists has those that only the
// administrator sees.
var Xattrs = XattrsBy(call)

// XattrsBy has all calls on extended attributes made by a function, which answers as the jail does.
func XattrsBy(call func(fd int, c *wire.Call) ([]byte, error)) fileattr.Xattrs {
	return fileattr.Xattrs{
		List: func(fd int, buf []byte) (int, error) { return fill(buf)(call(fd, &wire.Call{Op: wire.ListXattr})) },
		Get: func(fd int, key string, buf []byte) (int, error) {
			return fill(buf)(call(fd, &wire.Call{Op: wire.GetXattr, Key: key}))
		},
		Set: func(fd int, key string, value []byte) error {
			_, err := call(fd, &wire.Call{Op: wire.SetXattr, Key: key, Value: value})
			return err
		},
	}
}

// fill makes an answer that of a system call, which tells the length where there is no buffer.
func fill(buf []byte) func(answer []byte, err error) (int, error) {
	return func(answer []byte, err error) (int, error) {
		switch {
		case err != nil:
			return 0, err
		case len(buf) > 0 && len(buf) < len(answer):
			return 0, unix.ERANGE
		}
		copy(buf, answer)
		return len(answer), nil
	}
}

// call asks the jail. One goroutine at a time.
func call(fd int, c *wire.Call) ([]byte, error) {
	b, err := c.Bytes()
	if err != nil {
		return nil, err
	}
	if err := retry(func() error { return unix.Sendmsg(wire.FDCalls, b, unix.UnixRights(fd), nil, 0) }); err != nil {
		return nil, err
	}
	reply := make([]byte, wire.MaxCall)
	var n int
	if err := retry(func() (err error) { n, _, err = unix.Recvfrom(wire.FDCalls, reply, 0); return err }); err != nil {
		return nil, err
	}
	return wire.ParseReply(reply[:n])
}

func retry(do func() error) error {
	for {
		if err := do(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
