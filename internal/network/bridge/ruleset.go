package bridge

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"berth/internal/firewall"
)

// ruleset is the bridge's nftables table, named after it:
//
//	table inet berth-berth0 {
//		map ports4    { type inet_proto . inet_service : ipv4_addr . inet_service }               # any local address
//		map ports4-at { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service }   # one local address
//		set targets4  { type ipv4_addr . inet_proto . inet_service }                              # what those lead to
//		(and ports6, ports6-at, targets6)
//		chain guard       { hook prerouting, raw:   iifname bridge ip daddr or ip saddr 127.0.0.0/8 drop, two rules }
//		chain prerouting  { hook prerouting, dstnat: where the address is local: dnat to ports4-at, or to ports4 }
//		chain output      { the same for what processes of the host send }
//		chain postrouting { hook postrouting, srcnat: masquerade
//			what processes sent to a loopback address and a host port,
//			what pods sent to a host port (the answer must come back through the node, though both are on the bridge),
//			what pods send out of their range, but not to a range that is not masqueraded }
//	}
//
// The rules are as many with one pod as with a thousand: host ports are elements of the maps.
type ruleset struct {
	bridge string
	cidrs  []netip.Prefix
	plain  []netip.Prefix // where packets go without being masqueraded
}

const (
	reg0 = 1 // NFT_REG_1: the first 16 bytes of the registers
	// The 4-byte registers: slot(0) is the beginning of reg0.
	slot0 = 8
	// elementsPerMessage keeps a list of elements under the 64 KiB that a netlink attribute can hold.
	elementsPerMessage = 256
)

func slot(n int) uint32 { return uint32(slot0 + n) }

// family is what differs between the two halves of the table.
type family struct {
	name      string
	nfproto   byte
	addrLen   uint32
	src, dst  uint32 // offsets in the network header
	addrType  nftables.SetDatatype
	loopback  netip.Prefix
	multicast netip.Prefix
}

var (
	ipv4 = family{
		name: "4", nfproto: unix.NFPROTO_IPV4, addrLen: 4, src: 12, dst: 16, addrType: nftables.TypeIPAddr,
		loopback: netip.MustParsePrefix("127.0.0.0/8"), multicast: netip.MustParsePrefix("224.0.0.0/4"),
	}
	ipv6 = family{
		name: "6", nfproto: unix.NFPROTO_IPV6, addrLen: 16, src: 8, dst: 24, addrType: nftables.TypeIP6Addr,
		loopback: netip.MustParsePrefix("::1/128"), multicast: netip.MustParsePrefix("ff00::/8"),
	}
)

func familyOf(a netip.Addr) family {
	if a.Is4() {
		return ipv4
	}
	return ipv6
}

func (s ruleset) table() *nftables.Table {
	return &nftables.Table{Name: tableName(s.bridge), Family: nftables.TableFamilyINet}
}

func tableName(bridge string) string { return "berth-" + bridge }

// sets are what a family's host ports are in. IDs are unique in a transaction.
type sets struct {
	any     *nftables.Set // map of host ports of any local address
	at      *nftables.Set // map of host ports of one address
	targets *nftables.Set
}

func (s ruleset) sets(f family) sets {
	target := nftables.MustConcatSetType(f.addrType, nftables.TypeInetService)
	port := nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService)
	portAt := nftables.MustConcatSetType(f.addrType, nftables.TypeInetProto, nftables.TypeInetService)
	id := 4 * uint32(f.nfproto)
	return sets{
		any: &nftables.Set{
			Table: s.table(), ID: id, Name: "ports" + f.name, IsMap: true, Concatenation: true, KeyType: port,
			DataType: target,
		},
		at: &nftables.Set{
			Table: s.table(), ID: id + 1, Name: "ports" + f.name + "-at", IsMap: true, Concatenation: true,
			KeyType: portAt, DataType: target,
		},
		targets: &nftables.Set{
			Table: s.table(), ID: id + 2, Name: "targets" + f.name, Concatenation: true, KeyType: portAt,
		},
	}
}

func (s sets) all() []*nftables.Set { return []*nftables.Set{s.any, s.at, s.targets} }

// key is an address, which may be left out, a protocol and a port: each part takes a multiple of 4 bytes.
func key(addr netip.Addr, proto uint8, port uint16) []byte {
	k := append(addr.AsSlice(), proto, 0, 0, 0)
	return append(binary.BigEndian.AppendUint16(k, port), 0, 0)
}

// elements are what host ports are in the family's sets.
func (f family) elements(ports []hostPort) (anyAddr, at, targets []nftables.SetElement) {
	seen := map[string]bool{}
	for _, p := range ports {
		if familyOf(p.host).nfproto != f.nfproto {
			continue
		}
		to := p.target
		val := append(binary.BigEndian.AppendUint16(to.Addr().AsSlice(), to.Port()), 0, 0)
		if p.host.IsUnspecified() {
			anyAddr = append(anyAddr, nftables.SetElement{Key: key(netip.Addr{}, p.proto, p.port), Val: val})
		} else {
			at = append(at, nftables.SetElement{Key: key(p.host, p.proto, p.port), Val: val})
		}
		target := key(to.Addr(), p.proto, to.Port())
		if !seen[string(target)] { // several host ports may lead to one
			seen[string(target)] = true
			targets = append(targets, nftables.SetElement{Key: target})
		}
	}
	return anyAddr, at, targets
}

// each calls f with what of the ports belongs in a set, for each set that anything belongs in.
func (s ruleset) each(ports []hostPort, f func(*nftables.Set, []nftables.SetElement) error) error {
	for _, fam := range []family{ipv4, ipv6} {
		anyAddr, at, targets := fam.elements(ports)
		for i, set := range s.sets(fam).all() {
			for part := range slices.Chunk([][]nftables.SetElement{anyAddr, at, targets}[i], elementsPerMessage) {
				if err := f(set, part); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// add puts host ports into the table, all or none. It fails with EEXIST where a key is there with another target,
// and with ENOENT where the table is gone.
func (s ruleset) add(to *tables, ports []hostPort) error {
	return to.transaction(func(c *nftables.Conn) error { return s.each(ports, c.SetAddElements) })
}

// remove takes host ports out of the table. It fails with ENOENT, and takes out none, where one is not there.
func (s ruleset) remove(from *tables, ports []hostPort) error {
	return from.transaction(func(c *nftables.Conn) error { return s.each(ports, c.SetDeleteElements) })
}

// replace writes the whole table for these host ports in one transaction, and replaces any earlier content.
func (s ruleset) replace(in *tables, ports []hostPort) error {
	there, err := s.there()
	if err != nil {
		return err
	}
	return in.transaction(func(c *nftables.Conn) error {
		t := s.table()
		if there { // otherwise the kernel would have something to let go of: see tables
			c.AddTable(t) // it may have gone since
			c.DelTable(t)
		}
		c.AddTable(t)
		for _, f := range []family{ipv4, ipv6} {
			for _, set := range s.sets(f).all() {
				if err := c.AddSet(set, nil); err != nil {
					return err
				}
			}
		}
		for _, chain := range s.chains() {
			c.AddChain(chain.Chain)
			for _, exprs := range chain.rules {
				c.AddRule(&nftables.Rule{Table: t, Chain: chain.Chain, Exprs: exprs})
			}
		}
		return s.each(ports, c.SetAddElements)
	})
}

// whole tells whether the table is in place with all its rules and as many host ports. The error is that of a kernel
// that cannot be asked.
func (s ruleset) whole(ports []hostPort) (bool, error) {
	if there, err := s.there(); err != nil || !there {
		return false, err
	}
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return false, err
	}
	defer c.CloseLasting()
	for _, chain := range s.chains() {
		rules, err := c.GetRules(s.table(), chain.Chain)
		if err != nil || len(rules) != len(chain.rules) {
			return false, nil
		}
	}
	for _, f := range []family{ipv4, ipv6} {
		anyAddr, at, targets := f.elements(ports)
		for i, set := range s.sets(f).all() {
			elements, err := c.GetSetElements(set)
			if err != nil || len(elements) != []int{len(anyAddr), len(at), len(targets)}[i] {
				return false, nil
			}
		}
	}
	return true, nil
}

// there tells whether there is a table of the bridge. A kernel without nftables has none.
func (s ruleset) there() (bool, error) {
	tables, err := inetTables()
	if firewall.WithoutNftables(err) {
		return false, nil
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == tableName(s.bridge) }), err
}

// drop removes the table, if it is there.
func (s ruleset) drop(in *tables) error {
	err := in.transaction(func(c *nftables.Conn) error {
		c.AddTable(s.table()) // so that it is no error if there is none
		c.DelTable(s.table())
		return nil
	})
	if firewall.WithoutNftables(err) {
		return nil
	}
	return err
}

func inetTables() ([]*nftables.Table, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return tables, nil
}

type chain struct {
	*nftables.Chain
	rules [][]expr.Any
}

func (s ruleset) chains() []chain {
	base := func(name string, kind nftables.ChainType, hook *nftables.ChainHook, prio *nftables.ChainPriority) chain {
		return chain{Chain: &nftables.Chain{Name: name, Table: s.table(), Type: kind, Hooknum: hook, Priority: prio}}
	}
	guard := base("guard", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	pre := base("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
	out := base("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest)
	post := base("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)

	fromBridge := matchInterface(expr.MetaKeyIIFNAME, expr.CmpOpEq, s.bridge)
	toBridge := matchInterface(expr.MetaKeyOIFNAME, expr.CmpOpEq, s.bridge)
	notToBridge := matchInterface(expr.MetaKeyOIFNAME, expr.CmpOpNeq, s.bridge)
	masquerade := []expr.Any{&expr.Masq{}}

	// With route_localnet and without rp_filter, the kernel takes any source of 127.0.0.0/8 but the addresses that the
	// node has itself, which are 127.0.0.1 alone as a rule.
	for _, offset := range []uint32{ipv4.dst, ipv4.src} {
		guard.rules = append(guard.rules, slices.Concat(ipv4.match(), fromBridge,
			ipv4.address(offset, expr.CmpOpEq, ipv4.loopback), []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}))
	}
	for _, cidr := range s.cidrs {
		f := familyOf(cidr.Addr())
		sets := s.sets(f)
		pre.rules = append(pre.rules, f.dnatAt(sets.at), f.dnat(sets.any))
		out.rules = append(out.rules, f.dnatAt(sets.at), f.dnat(sets.any))
		fromPods := slices.Concat(f.match(), toBridge, f.address(f.src, expr.CmpOpEq, cidr))
		post.rules = append(post.rules,
			slices.Concat(f.match(), toBridge, f.address(f.src, expr.CmpOpEq, f.loopback), masquerade),
			slices.Concat(fromPods, f.wasMapped(sets.targets), masquerade))
		for _, plain := range s.plain {
			if plain.Addr().Is4() == cidr.Addr().Is4() {
				post.rules = append(post.rules, slices.Concat(f.match(), notToBridge, f.address(f.src, expr.CmpOpEq, cidr),
					f.address(f.dst, expr.CmpOpEq, plain), []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}}))
			}
		}
		post.rules = append(post.rules,
			slices.Concat(f.match(), notToBridge, f.address(f.src, expr.CmpOpEq, cidr),
				f.address(f.dst, expr.CmpOpNeq, cidr), f.address(f.dst, expr.CmpOpNeq, f.multicast),
				[]expr.Any{&expr.Masq{FullyRandom: true}}))
	}
	return []chain{guard, pre, out, post}
}

func matchInterface(key expr.MetaKey, op expr.CmpOp, name string) []expr.Any {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return []expr.Any{
		&expr.Meta{Key: key, Register: reg0},
		&expr.Cmp{Op: op, Register: reg0, Data: padded},
	}
}

func (f family) match() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg0},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: []byte{f.nfproto}},
	}
}

// address compares the source or destination with a prefix.
func (f family) address(offset uint32, op expr.CmpOp, p netip.Prefix) []expr.Any {
	mask := ipNet(p).Mask
	return []expr.Any{
		&expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.addrLen, DestRegister: reg0},
		&expr.Bitwise{
			SourceRegister: reg0, DestRegister: reg0, Len: f.addrLen, Mask: mask, Xor: make([]byte, f.addrLen),
		},
		&expr.Cmp{Op: op, Register: reg0, Data: p.Masked().Addr().AsSlice()},
	}
}

// protocolAndPort loads the two parts of a key, from a slot on.
func protocolAndPort(at int) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: slot(at)},
		&expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2, DestRegister: slot(at + 1)},
	}
}

func lookup(set *nftables.Set) expr.Any {
	return &expr.Lookup{
		SourceRegister: reg0, DestRegister: reg0, IsDestRegSet: true, SetName: set.Name, SetID: set.ID,
	}
}

// words is how many slots an address takes.
func (f family) words() int { return int(f.addrLen / 4) }

func (f family) toTarget() expr.Any {
	return &expr.NAT{
		Type: expr.NATTypeDestNAT, Family: uint32(f.nfproto), RegAddrMin: reg0, RegProtoMin: slot(f.words()),
		Specified: true,
	}
}

// isLocal is: fib daddr type local. Without it, a pod could name another host's address as its host IP, and get what
// this node, its pods and the hosts that it routes for send there.
func isLocal() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg0, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
}

// dnatAt is: fib daddr type local dnat to ip daddr . meta l4proto . th dport map @ports4-at
func (f family) dnatAt(set *nftables.Set) []expr.Any {
	load := &expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: f.dst, Len: f.addrLen, DestRegister: reg0}
	return slices.Concat(f.match(), isLocal(), []expr.Any{load}, protocolAndPort(f.words()),
		[]expr.Any{lookup(set), f.toTarget()})
}

// dnat is: fib daddr type local dnat to meta l4proto . th dport map @ports4
func (f family) dnat(set *nftables.Set) []expr.Any {
	return slices.Concat(f.match(), isLocal(), protocolAndPort(0), []expr.Any{lookup(set), f.toTarget()})
}

// wasMapped matches connections whose destination was changed (ct status dnat) to what a host port leads to.
func (f family) wasMapped(targets *nftables.Set) []expr.Any {
	const statusDNAT = 1 << 5 // IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h
	status := []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: reg0},
		&expr.Bitwise{
			SourceRegister: reg0, DestRegister: reg0, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(statusDNAT), Xor: make([]byte, 4),
		},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg0, Data: make([]byte, 4)},
		&expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: f.dst, Len: f.addrLen, DestRegister: reg0},
	}
	return slices.Concat(status, protocolAndPort(f.words()),
		[]expr.Any{&expr.Lookup{SourceRegister: reg0, SetName: targets.Name, SetID: targets.ID}})
}
