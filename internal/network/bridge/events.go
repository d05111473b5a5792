package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// listen tells when the kernel says that interfaces or rules of this bridge were removed. What else happens is found
// by the check that comes every checkInterval: of a thousand pods that come and go the kernel says ten thousand things.
func (b *Bridge) listen(ctx context.Context) <-chan struct{} {
	removed := make(chan struct{}, 1)
	tell := func() {
		select {
		case removed <- struct{}{}:
		default:
		}
	}
	for _, source := range []struct {
		protocol int
		group    uint
		ours     func(*syscall.NetlinkMessage) bool
	}{
		{unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, b.isLostLink},
		{unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES, b.isLostRule},
	} {
		socket, err := nl.Subscribe(source.protocol, source.group)
		if err != nil {
			b.log.Warn("changes from outside are noticed late", "bridge", b.cfg.Name, "error", fmt.Errorf("subscribe: %w", err))
			continue
		}
		stop := context.AfterFunc(ctx, socket.Close)
		b.done.Go(func() {
			defer stop()
			for {
				messages, _, err := socket.Receive()
				switch {
				case errors.Is(err, os.ErrClosed):
					return
				case err != nil: // ENOBUFS: some were lost
					if ctx.Err() != nil {
						return
					}
					tell()
				case slices.ContainsFunc(messages, func(m syscall.NetlinkMessage) bool { return source.ours(&m) }):
					tell()
				}
			}
		})
	}
	return removed
}

// isLostLink says whether a message is of the end of the bridge, or of an endpoint that is not on its way out. Who
// waits for the end of the interface of one that is is told.
func (b *Bridge) isLostLink(m *syscall.NetlinkMessage) bool {
	if m.Header.Type != unix.RTM_DELLINK || len(m.Data) < unix.SizeofIfInfomsg {
		return false
	}
	attrs, err := nl.ParseRouteAttr(m.Data[unix.SizeofIfInfomsg:])
	if err != nil {
		return false
	}
	at := slices.IndexFunc(attrs, func(a syscall.NetlinkRouteAttr) bool { return a.Attr.Type == unix.IFLA_IFNAME })
	if at < 0 {
		return false
	}
	name := string(bytes.TrimRight(attrs[at].Value, "\x00"))
	// With AF_BRIDGE, the port has left the bridge, and the interface is there still.
	return name == b.cfg.Name || b.pods.lostLink(name, m.Data[0] == unix.AF_UNSPEC)
}

// isLostRule says whether a message is of the end of the table, or of a chain, a rule or a set of it.
// Elements of sets come and go with pods.
func (b *Bridge) isLostRule(m *syscall.NetlinkMessage) bool {
	const header = 4 // struct nfgenmsg
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < header {
		return false
	}
	switch m.Header.Type & 0xff {
	case unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE, unix.NFT_MSG_DELSET:
	default:
		return false
	}
	attrs, err := nl.ParseRouteAttr(m.Data[header:])
	if err != nil {
		return false
	}
	// The table's name is the first attribute of all of them (NFTA_TABLE_NAME, NFTA_CHAIN_TABLE and so on).
	return slices.ContainsFunc(attrs, func(a syscall.NetlinkRouteAttr) bool {
		return a.Attr.Type == unix.NFTA_TABLE_NAME && string(bytes.TrimRight(a.Value, "\x00")) == tableName(b.cfg.Name)
	})
}
