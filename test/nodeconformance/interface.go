package main

import (
	"fmt"
	"net"

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
	if err := send(outside, eth0, 2000); err != nil {
		return err
	}
	return send(eth0, outside, 20)
}

// send sends packets of a protocol that nobody speaks, 1 KiB each, from one end of a pair to the other.
func send(from, to netlink.Link, packets int) error {
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	const protocol = 0xb588 // 0x88b5, the one for experiments, in the network's order
	at := &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: from.Attrs().Index, Halen: 6}
	copy(at.Addr[:], to.Attrs().HardwareAddr)
	for range packets {
		if err := unix.Sendto(socket, make([]byte, 1024), 0, at); err != nil {
			return fmt.Errorf("send on %s: %w", from.Attrs().Name, err)
		}
	}
	return nil
}
