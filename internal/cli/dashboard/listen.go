package dashboard

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/net/netutil"
)

// DefaultAddress is a free port of the loopback.
const DefaultAddress = "127.0.0.1:0"

// maxConnections is how many connections are served at a time. A browser keeps six.
const maxConnections = 96

// ParseAddress reads the address to listen on. It refuses one that other machines reach.
func ParseAddress(text string) (netip.AddrPort, error) {
	host, portText, err := net.SplitHostPort(text)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q is no address and port (example: 127.0.0.1:8080)", text)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q: the port %q is no number from 0 to 65535", text, portText)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	address, err := netip.ParseAddr(host)
	if err != nil && host != "" {
		return netip.AddrPort{}, fmt.Errorf("%q: %q is no IP address (example: 127.0.0.1:8080)", text, host)
	}
	if !address.Unmap().IsLoopback() || address.Zone() != "" {
		return netip.AddrPort{}, fmt.Errorf("%q is not an address of the loopback: the dashboard is for this machine only. "+
			"Give 127.0.0.1:PORT or [::1]:PORT, and reach it from another machine with `ssh -L PORT:127.0.0.1:PORT`", text)
	}
	return netip.AddrPortFrom(address.Unmap(), uint16(port)), nil
}

// Listen listens on an address of ParseAddress.
func Listen(ctx context.Context, address netip.AddrPort) (net.Listener, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address.String())
	if err != nil {
		return nil, err
	}
	return netutil.LimitListener(listener, maxConnections), nil
}
