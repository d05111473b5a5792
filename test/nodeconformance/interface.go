package main

import (
	"fmt"
	"net"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// makeInterface is the way to the outside, which leads nowhere. It has carried something, as those of machines
// have: a spec reads its counters.
func makeInterface() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "outside"}
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("make an interface: %w", err)
	}
	outside, err := netlink.LinkByName("outside")
	if err != nil {
		return err
	}
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	address, err := netlink.ParseAddr(hostAddress + "/24")
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(eth0, address); err != nil {
		return err
	}
	for _, link := range []netlink.Link{outside, eth0} {
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
	}
	route := &netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: net.IPv4(198, 51, 100, 1)}
	if err := netlink.RouteAdd(route); err != nil {
		return err
	}
	if err := send(outside, "eth0", 2<<20); err != nil {
		return err
	}
	return send(eth0, "outside", 32<<10)
}

// send sends packets of a protocol that nobody speaks from one end of a pair to the other until that has counted
// so many bytes. The kernel drops packets where it is slower than this.
func send(from netlink.Link, to string, bytes uint64) error {
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	const protocol = 0xb588 // 0x88b5, the one for experiments, in the network's order
	at := &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: from.Attrs().Index, Halen: 6}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		now, err := netlink.LinkByName(to)
		if err != nil {
			return err
		}
		if now.Attrs().Statistics.RxBytes >= bytes {
			return nil
		}
		copy(at.Addr[:], now.Attrs().HardwareAddr)
		for range 32 {
			if err := unix.Sendto(socket, make([]byte, 1024), 0, at); err != nil {
				return fmt.Errorf("send on %s: %w", from.Attrs().Name, err)
			}
		}
	}
	return fmt.Errorf("%s has not got what was sent to it", to)
}
