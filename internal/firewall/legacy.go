package firewall

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Layout of linux/netfilter_ipv4/ip_tables.h and linux/netfilter/x_tables.h.
const (
	getInfo    = 64 // IPT_SO_GET_INFO
	getEntries = 65 // IPT_SO_GET_ENTRIES

	tableNameLen = 32
	infoLen      = tableNameLen + 4*(1+5+5+1+1) // struct ipt_getinfo
	entriesAt    = tableNameLen + 8             // of struct ipt_get_entries
	entryLen     = 112                          // struct ipt_entry
	matchLen     = 32                           // struct xt_entry_match and xt_entry_target, without their data

	isGoto = 0x02 // IPT_F_GOTO

	nfDrop, nfRepeat = 0, 4 // verdicts of linux/netfilter.h

	invertIn, invertOut         = 0x01, 0x02 // IPT_INV_VIA_IN and so on
	invertSrc, invertDst        = 0x08, 0x10
	invertFragment, invertProto = 0x20, 0x40
	isFragment                  = 0x01 // IPT_F_FRAG
)

// legacyTable is the table filter of iptables-legacy, with the entries of all chains in one row.
type legacyTable struct {
	start, policy [5]uint32 // offsets of the first entry of a base chain and of its policy, by hook
	entries       []byte
}

// legacy finds the blocks in the table filter of iptables-legacy, for IPv4. It is not asked for where there is none:
// the question alone would make one.
func legacy(packets []packet) ([]Block, error) {
	names, err := os.ReadFile("/proc/thread-self/net/ip_tables_names")
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !slices.Contains(strings.Fields(string(names)), "filter") {
		return nil, nil
	}
	table, err := readLegacy()
	if err != nil {
		return nil, fmt.Errorf("iptables-legacy: table filter: %w", err)
	}
	var blocks []Block
	by := managers("filter", table.chains())
	for _, p := range packets {
		if p.from.Is4() && table.follow(p) == stopped {
			chain := map[hook]string{input: "INPUT", forward: "FORWARD"}[p.hook]
			blocks = append(blocks, Block{Way: p.way, Table: "ip filter", Chain: chain, Legacy: true, Managers: by})
		}
	}
	return blocks, nil
}

func readLegacy() (*legacyTable, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	for range 10 { // it may change between the two questions
		info := make([]byte, infoLen)
		copy(info, "filter")
		if err := getsockopt(fd, getInfo, info); err != nil {
			return nil, os.NewSyscallError("getsockopt IPT_SO_GET_INFO", err)
		}
		number := func(i int) uint32 { return binary.NativeEndian.Uint32(info[tableNameLen+4*i:]) }
		var table legacyTable
		for i := range table.start {
			table.start[i], table.policy[i] = number(1+i), number(6+i)
		}
		size := number(12)
		answer := make([]byte, entriesAt+int(size))
		copy(answer, "filter")
		binary.NativeEndian.PutUint32(answer[tableNameLen:], size)
		err := getsockopt(fd, getEntries, answer)
		if errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("getsockopt IPT_SO_GET_ENTRIES", err)
		}
		table.entries = answer[entriesAt:]
		return &table, nil
	}
	return nil, unix.EAGAIN
}

func getsockopt(fd, option int, buffer []byte) error {
	size := uint32(len(buffer))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_IP, uintptr(option),
		uintptr(unsafe.Pointer(&buffer[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// entry is one rule.
type entry struct {
	raw     []byte
	target  []byte // from struct xt_entry_target on
	matches []byte
}

func (t *legacyTable) entry(at uint32) (e entry, next uint32, ok bool) {
	if uint64(at)+entryLen > uint64(len(t.entries)) {
		return e, 0, false
	}
	raw := t.entries[at:]
	target, length := int(binary.NativeEndian.Uint16(raw[88:])), int(binary.NativeEndian.Uint16(raw[90:]))
	if target < entryLen || length < target+matchLen || length > len(raw) {
		return e, 0, false
	}
	return entry{raw: raw[:entryLen], matches: raw[entryLen:target], target: raw[target:length]}, at + uint32(length), true
}

// xtName is the name in a struct xt_entry_match or xt_entry_target.
func xtName(raw []byte) string {
	name, _, _ := bytes.Cut(raw[2:31], []byte{0})
	return string(name)
}

// chains are the names of the chains that are not base chains: each begins with an entry that has its name.
func (t *legacyTable) chains() (names []string) {
	for at := uint32(0); ; {
		e, next, ok := t.entry(at)
		if !ok {
			return names
		}
		if xtName(e.target) == "ERROR" {
			name, _, _ := bytes.Cut(e.target[matchLen:], []byte{0})
			names = append(names, string(name))
		}
		at = next
	}
}

// follow is what becomes of a packet that comes to the table.
func (t *legacyTable) follow(p packet) outcome {
	at, policy := t.start[p.hook], t.policy[p.hook]
	var back []uint32
	for range 1 << 20 { // the kernel has seen to it that there are no loops
		e, next, ok := t.entry(at)
		if !ok {
			return returned
		}
		here := at
		at = next
		if here != policy && !p.matchesLegacy(e) {
			continue
		}
		name := xtName(e.target)
		if name == "REJECT" {
			return stopped
		}
		if name != "" || len(e.target) < matchLen+4 {
			if name == "ERROR" {
				return returned
			}
			continue // LOG and the like
		}
		switch verdict := int32(binary.NativeEndian.Uint32(e.target[matchLen:])); {
		case verdict >= 0:
			if uint32(verdict) != next && e.raw[82]&isGoto == 0 {
				back = append(back, next)
			}
			at = uint32(verdict)
		case verdict == -nfDrop-1:
			return stopped
		case verdict == -nfRepeat-1: // XT_RETURN
			at = policy
			if last := len(back) - 1; last >= 0 {
				at, back = back[last], back[:last]
			}
		default:
			return passed
		}
	}
	return returned
}

// matchesLegacy tells whether a rule is for the packet.
func (p packet) matchesLegacy(e entry) bool {
	raw, flags, inverted := e.raw, e.raw[82], e.raw[83]
	address := func(a netip.Addr, want, mask []byte) bool {
		for i, b := range a.AsSlice() {
			if b&mask[i] != want[i] {
				return false
			}
		}
		return true
	}
	name := func(has string, want, mask []byte) bool {
		padded := paddedName(has)
		for i := range padded {
			if padded[i]&mask[i] != want[i]&mask[i] {
				return false
			}
		}
		return true
	}
	protocol := binary.NativeEndian.Uint16(raw[80:])
	switch {
	case address(p.from, raw[0:4], raw[8:12]) == (inverted&invertSrc != 0),
		address(p.to, raw[4:8], raw[12:16]) == (inverted&invertDst != 0),
		name(p.in.name, raw[16:32], raw[48:64]) == (inverted&invertIn != 0),
		name(p.out.name, raw[32:48], raw[64:80]) == (inverted&invertOut != 0),
		protocol != 0 && (protocol == unix.IPPROTO_TCP) == (inverted&invertProto != 0),
		flags&isFragment != 0 && inverted&invertFragment == 0:
		return false
	}
	for rest := e.matches; len(rest) >= matchLen; {
		size := int(binary.NativeEndian.Uint16(rest))
		if size < matchLen || size > len(rest) || !p.matchLegacy(xtName(rest), rest[31], rest[matchLen:size]) {
			return false
		}
		rest = rest[size:]
	}
	return true
}

// matchLegacy tells whether a match is one of all packets, or of the state of this one's connection.
func (p packet) matchLegacy(name string, revision byte, data []byte) bool {
	switch {
	case name == "comment":
		return true
	case name == "state" && len(data) >= 4:
		return binary.NativeEndian.Uint32(data)&p.state != 0
	case name == "conntrack" && (revision == 2 || revision == 3) && len(data) >= 152: // struct xt_conntrack_mtinfo3
		const state, alias = 0x01, 0x2000 // XT_CONNTRACK_STATE, XT_CONNTRACK_STATE_ALIAS
		flags, inverted := binary.NativeEndian.Uint16(data[146:]), binary.NativeEndian.Uint16(data[148:])
		mask := uint32(binary.NativeEndian.Uint16(data[150:]))
		return flags&^alias == state && (mask&p.state != 0) != (inverted&state != 0)
	}
	return false
}
