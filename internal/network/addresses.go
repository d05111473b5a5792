package network

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// addressesTimeout bounds the wait for the kernel's answer, which may stand behind others for the routing lock.
const addressesTimeout = 2 * time.Second

// Addresses reads what the kernel says of the network namespace pinned at path: the first interface that has addresses
// which others reach, and those. It is for a pod of which no record says them.
func Addresses(path string) (*Result, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("network namespace %s: %w", path, err)
	}
	defer ns.Close()
	handle, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("network namespace %s: %w", path, err)
	}
	defer handle.Close()
	if err := handle.SetSocketTimeout(addressesTimeout); err != nil {
		return nil, fmt.Errorf("network namespace %s: %w", path, err)
	}
	links, err := handle.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("network namespace %s: interfaces: %w", path, err)
	}
	for _, link := range links {
		found := &Result{Interface: link.Attrs().Name}
		list, err := handle.AddrList(link, netlink.FAMILY_ALL)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, fmt.Errorf("network namespace %s: addresses of %s: %w", path, found.Interface, err)
		}
		for _, a := range list {
			ip, ok := netip.AddrFromSlice(a.IP)
			if ip = ip.Unmap(); ok && a.Scope == unix.RT_SCOPE_UNIVERSE && !ip.IsLoopback() {
				found.IPs = append(found.IPs, ip)
			}
		}
		if len(found.IPs) > 0 {
			return found, nil
		}
	}
	return &Result{}, nil
}
