package stats

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"berth/internal/model"
)

// What follows asks rtnetlink(7) for links. The netlink library would do it too, but makes a buffer of 64 KiB for each
// answer, and for each link an object with all of its attributes, which takes as long as the kernel's part.

// socketTimeout bounds the wait for the kernel's answer.
const socketTimeout = 2 * time.Second

// links calls f for each link but the loopback in the network namespace of a socket.
func links(s *nl.NetlinkSocket, f func(model.InterfaceUsage)) error {
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	return ask(s, request, func(payload []byte) error {
		if len(payload) < unix.SizeofIfInfomsg {
			return fmt.Errorf("a link of %d bytes", len(payload))
		}
		if nl.DeserializeIfInfomsg(payload).Flags&unix.IFF_LOOPBACK != 0 {
			return nil
		}
		var u model.InterfaceUsage
		counted := false
		err := attributes(payload[unix.SizeofIfInfomsg:], func(kind uint16, value []byte) {
			switch kind {
			case unix.IFLA_IFNAME:
				u.Name = text(unix.ByteSliceToString(value))
			case unix.IFLA_STATS64:
				counted = counters(&u, value)
			}
		})
		if counted {
			f(u)
		}
		return err
	})
}

// text is the name of an interface as text: each byte that is part of none is a colon and two digits, "\xff" for
// instance ":ff". A pod with CAP_NET_ADMIN gives any names, and no message and no metric takes one that is not UTF-8:
// the statistics of all pods would be lost. The kernel lets no name have a colon, so no two become one.
func text(name string) string {
	if utf8.ValidString(name) {
		return name
	}
	var out strings.Builder
	for len(name) > 0 {
		r, size := utf8.DecodeRuneInString(name)
		if r == utf8.RuneError && size == 1 {
			fmt.Fprintf(&out, ":%02x", name[0])
		} else {
			out.WriteString(name[:size])
		}
		name = name[size:]
	}
	return out.String()
}

// ask sends a request and calls f for the payload of each message of the answer.
func ask(s *nl.NetlinkSocket, request *nl.NetlinkRequest, f func([]byte) error) error {
	if err := errors.Join(s.SetSendTimeout(new(unix.NsecToTimeval(int64(socketTimeout)))), s.Send(request)); err != nil {
		return err
	}
	// The kernel puts no more into one answer than the reader has room for; one link takes less than 2 KiB.
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for {
		n, from, err := unix.Recvfrom(s.GetFd(), *buf, 0)
		if errors.Is(err, unix.EAGAIN) { // the library's sockets do not block; mostly the answer is there by now
			if err = readable(s.GetFd()); err == nil {
				continue
			}
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if a, ok := from.(*unix.SockaddrNetlink); !ok || a.Pid != nl.PidKernel {
			return fmt.Errorf("an answer from %v, which is not the kernel", from)
		}
		messages, err := syscall.ParseNetlinkMessage((*buf)[:n])
		if err != nil {
			return err
		}
		for i := range messages {
			if seq := messages[i].Header.Seq; seq != request.Seq {
				return fmt.Errorf("an answer to request %d, not to %d", seq, request.Seq)
			}
			if end, err := answered(&messages[i], f); end || err != nil {
				return err
			}
		}
	}
}

// readable waits until a socket has something to read.
func readable(fd int) error {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(socketTimeout.Milliseconds()))
	if err == nil && n == 0 {
		err = os.ErrDeadlineExceeded
	}
	return err
}

// answered takes one message of an answer. end: it is the last one.
func answered(m *syscall.NetlinkMessage, f func([]byte) error) (end bool, err error) {
	switch m.Header.Type {
	case unix.NLMSG_DONE, unix.NLMSG_ERROR:
		if len(m.Data) >= 4 {
			if errno := int32(binary.NativeEndian.Uint32(m.Data)); errno != 0 {
				return true, syscall.Errno(-errno)
			}
		}
		return true, nil
	}
	return m.Header.Flags&unix.NLM_F_MULTI == 0, f(m.Data)
}

// attributes calls f for each attribute.
func attributes(b []byte, f func(kind uint16, value []byte)) error {
	for len(b) >= unix.SizeofRtAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtAttr || size > len(b) {
			return fmt.Errorf("an attribute of %d bytes in %d", size, len(b))
		}
		f(binary.NativeEndian.Uint16(b[2:]), b[unix.SizeofRtAttr:size])
		b = b[min((size+3)&^3, len(b)):]
	}
	return nil
}

// counters are the first of struct rtnl_link_stats64.
func counters(u *model.InterfaceUsage, value []byte) bool {
	for _, to := range []*uint64{
		&u.RxPackets, &u.TxPackets, &u.RxBytes, &u.TxBytes, &u.RxErrors, &u.TxErrors, &u.RxDropped, &u.TxDropped,
	} {
		if len(value) < 8 {
			return false
		}
		*to, value = binary.NativeEndian.Uint64(value), value[8:]
	}
	return true
}
