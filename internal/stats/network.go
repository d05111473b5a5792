package stats

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth/internal/model"
)

// DefaultInterface is a pod's interface to its network; it comes first in Interfaces.
const DefaultInterface = "eth0"

// socketTimeout bounds the wait for the kernel's answer, which may stand behind others for the routing lock.
const socketTimeout = 2 * time.Second

// Interfaces reads the counters of the interfaces in the network namespace pinned at path, but for the loopback;
// an empty path is the node's own namespace.
func Interfaces(path string) ([]model.InterfaceUsage, error) {
	ns := netns.None()
	if path != "" {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("network namespace: %w", &os.PathError{Op: "open", Path: path, Err: err})
		}
		ns = netns.NsHandle(fd)
		defer ns.Close()
	}
	// The socket is made inside the namespace by a thread that comes back at once, and stays inside it.
	handle, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("network namespace %s: %w", path, err)
	}
	defer handle.Close()
	if err := handle.SetSocketTimeout(socketTimeout); err != nil {
		return nil, fmt.Errorf("network namespace %s: %w", path, err)
	}
	links, err := handle.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("network namespace %s: interfaces: %w", path, err)
	}
	var out []model.InterfaceUsage
	for _, link := range links {
		attrs := link.Attrs()
		if attrs.Statistics == nil || attrs.RawFlags&unix.IFF_LOOPBACK != 0 {
			continue
		}
		s := attrs.Statistics
		out = append(out, model.InterfaceUsage{Name: attrs.Name, RxBytes: s.RxBytes, RxErrors: s.RxErrors,
			TxBytes: s.TxBytes, TxErrors: s.TxErrors, RxPackets: s.RxPackets, RxDropped: s.RxDropped,
			TxPackets: s.TxPackets, TxDropped: s.TxDropped})
	}
	if i := slices.IndexFunc(out, func(u model.InterfaceUsage) bool { return u.Name == DefaultInterface }); i > 0 {
		first := out[i]
		out = slices.Insert(slices.Delete(out, i, i+1), 0, first)
	}
	return out, nil
}
