package stats

import (
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth/internal/model"
)

// DefaultInterface is a pod's interface to its network; it comes first in Interfaces.
const DefaultInterface = "eth0"

// maxInterfaces is how many interfaces a pod has in statistics beside DefaultInterface. A pod with CAP_NET_ADMIN can
// make many thousands, and what is told of each is a kilobyte or two: the statistics of all pods would be lost with the
// message that no client takes any more.
const maxInterfaces = 64

// ownNamespace is the node's network namespace, which threads come back to.
var ownNamespace = sync.OnceValues(netns.Get)

// Interfaces reads the counters of the interfaces in the network namespace pinned at path, but for the loopback, and
// for those beyond maxInterfaces, which are only counted. An empty path is the node's own namespace, of which there are
// all.
func Interfaces(path string) (out []model.InterfaceUsage, omitted int, err error) {
	ns, own := netns.None(), netns.None()
	if path != "" {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, 0, fmt.Errorf("network namespace: %w", &os.PathError{Op: "open", Path: path, Err: err})
		}
		ns = netns.NsHandle(fd)
		defer ns.Close()
		if own, err = ownNamespace(); err != nil {
			return nil, 0, fmt.Errorf("the network namespace of berthd: %w", err)
		}
	}
	// The socket is made inside the namespace by a thread that comes back at once, and stays inside it. It is not kept
	// for the next reading: the namespace would stay for as long as the socket. A socket outside of the namespace could
	// ask by an ID of the namespace, but to find that the kernel visits those of all pods.
	s, err := nl.GetNetlinkSocketAt(ns, own, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, 0, fmt.Errorf("network namespace %s: %w", path, err)
	}
	defer s.Close()
	others := 0
	err = links(s, func(u model.InterfaceUsage) {
		if u.Name != DefaultInterface {
			if others++; path != "" && others > maxInterfaces {
				omitted++
				return
			}
		}
		out = append(out, u)
	})
	if err != nil {
		return nil, 0, fmt.Errorf("network namespace %s: interfaces: %w", path, err)
	}
	if i := slices.IndexFunc(out, func(u model.InterfaceUsage) bool { return u.Name == DefaultInterface }); i > 0 {
		first := out[i]
		out = slices.Insert(slices.Delete(out, i, i+1), 0, first)
	}
	return out, omitted, nil
}
