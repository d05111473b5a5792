package firewall

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// hook is where in the kernel a packet is, with the numbers of linux/netfilter.h.
type hook uint32

const (
	input   hook = unix.NF_INET_LOCAL_IN
	forward hook = unix.NF_INET_FORWARD
)

// States of a connection, as bits (NF_CT_STATE_BIT of the kernel; xtables has the same).
const (
	stateEstablished uint32 = 1 << 1
	stateNew         uint32 = 1 << 3
)

// link is an interface; the zero value is none.
type link struct {
	name  string
	index int
}

// packet is one that rules are tried with: the first of a TCP connection, or a later one.
type packet struct {
	way      Way
	hook     hook
	in, out  link
	from, to netip.Addr
	state    uint32
}

func (p packet) family() byte {
	if p.from.Is4() {
		return unix.NFPROTO_IPV4
	}
	return unix.NFPROTO_IPV6
}

// paddedName is the name of an interface as the kernel compares it.
func paddedName(name string) []byte {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return padded
}

// meta is what a rule of nftables loads of a packet; nil: it is not known, and no rule that asks for it matches.
func (p packet) meta(key expr.MetaKey) []byte {
	native := binaryutil.NativeEndian.PutUint32
	switch key {
	case expr.MetaKeyIIFNAME:
		return paddedName(p.in.name)
	case expr.MetaKeyOIFNAME:
		return paddedName(p.out.name)
	case expr.MetaKeyIIF:
		return native(uint32(p.in.index))
	case expr.MetaKeyOIF:
		return native(uint32(p.out.index))
	case expr.MetaKeyNFPROTO:
		return []byte{p.family()}
	case expr.MetaKeyL4PROTO:
		return []byte{unix.IPPROTO_TCP}
	case expr.MetaKeyMARK:
		return native(0)
	case expr.MetaKeyPROTOCOL:
		if p.from.Is4() {
			return binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP)
		}
		return binary.BigEndian.AppendUint16(nil, unix.ETH_P_IPV6)
	}
	return nil
}

// payload is a part of the packet's headers.
func (p packet) payload(base expr.PayloadBase, offset, length uint32) []byte {
	if base != expr.PayloadBaseNetworkHeader {
		return nil
	}
	protocol, from, to := uint32(9), uint32(12), uint32(16)
	size := uint32(4)
	if p.from.Is6() {
		protocol, from, to, size = 6, 8, 24, 16
	}
	switch {
	case offset == protocol && length == 1:
		return []byte{unix.IPPROTO_TCP}
	case offset >= from && offset+length <= from+size: // a prefix of whole bytes is a shorter part
		return p.from.AsSlice()[offset-from : offset-from+length]
	case offset >= to && offset+length <= to+size:
		return p.to.AsSlice()[offset-to : offset-to+length]
	case offset == from && length == 2*size:
		return append(p.from.AsSlice(), p.to.AsSlice()...)
	}
	return nil
}

// holds compares what was loaded. The name of an interface may be compared with the beginning of one.
func holds(value []byte, op expr.CmpOp, data []byte) bool {
	if value == nil || len(data) > len(value) {
		return false
	}
	c := bytes.Compare(value[:len(data)], data)
	switch op {
	case expr.CmpOpEq:
		return c == 0
	case expr.CmpOpNeq:
		return c != 0
	case expr.CmpOpLt:
		return c < 0
	case expr.CmpOpLte:
		return c <= 0
	case expr.CmpOpGt:
		return c > 0
	case expr.CmpOpGte:
		return c >= 0
	}
	return false
}
