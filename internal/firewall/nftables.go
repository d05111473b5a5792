package firewall

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	nft "github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// ruleset reads the chains of nftables as packets get to them: of a node with thousands of Services, most are not read.
type ruleset struct {
	conn   *nft.Conn
	chains []*nft.Chain
	rules  map[chainName][]*nft.Rule
	sets   map[chainName][]nft.SetElement // by the name of the set
	err    error                          // the first of what could not be read
}

// chainName is a name in a table.
type chainName struct {
	family      nft.TableFamily
	table, name string
}

// outcome is what becomes of a packet in a chain.
type outcome int

const (
	returned outcome = iota // the chain says nothing of it
	passed
	stopped
)

// nftables finds the blocks in the tables of nftables. The bridge's own table, berth-NAME, is Berth's.
func nftables(b Bridge, packets []packet) ([]Block, error) {
	conn, err := nft.New(nft.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	defer conn.CloseLasting()
	s := &ruleset{conn: conn, rules: map[chainName][]*nft.Rule{}, sets: map[chainName][]nft.SetElement{}}
	if s.chains, err = conn.ListChains(); err != nil {
		if WithoutNftables(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("nftables: list chains: %w", err)
	}
	var blocks []Block
	for _, c := range s.chains {
		if c.Hooknum == nil || c.Type != nft.ChainTypeFilter || c.Table.Name == "berth-"+b.Name {
			continue
		}
		for _, p := range packets {
			if hook(*c.Hooknum) != p.hook || !s.sees(c, p) || s.base(c, p) != stopped {
				continue
			}
			block := Block{Way: p.way, Table: familyName(c.Table.Family) + " " + c.Table.Name, Chain: c.Name,
				Managers: s.managers(c.Table)}
			if !slices.ContainsFunc(blocks, func(b Block) bool {
				return b.Way == block.Way && b.Table == block.Table && b.Chain == block.Chain
			}) {
				blocks = append(blocks, block)
			}
		}
	}
	return blocks, s.err
}

// WithoutNftables tells an error of a kernel without nftables.
func WithoutNftables(err error) bool {
	for _, without := range []error{unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EINVAL, unix.EOPNOTSUPP} {
		if errors.Is(err, without) {
			return true
		}
	}
	return false
}

func familyName(f nft.TableFamily) string {
	switch f {
	case nft.TableFamilyIPv4:
		return "ip"
	case nft.TableFamilyIPv6:
		return "ip6"
	}
	return "inet"
}

// sees tells whether packets of this family get to a base chain.
func (s *ruleset) sees(c *nft.Chain, p packet) bool {
	switch c.Table.Family {
	case nft.TableFamilyINet:
		return true
	case nft.TableFamilyIPv4:
		return p.from.Is4()
	case nft.TableFamilyIPv6:
		return p.from.Is6()
	}
	return false
}

func (s *ruleset) managers(t *nft.Table) []Manager {
	var names []string
	for _, c := range s.chains {
		if c.Table.Family == t.Family && c.Table.Name == t.Name {
			names = append(names, c.Name)
		}
	}
	return managers(t.Name, names)
}

// base is what becomes of a packet in a base chain.
func (s *ruleset) base(c *nft.Chain, p packet) outcome {
	if o := s.chain(c.Table, c.Name, p, 0); o != returned {
		return o
	}
	if c.Policy != nil && *c.Policy == nft.ChainPolicyDrop {
		return stopped
	}
	return passed
}

// maxDepth is how deep jumps can be (NFT_JUMP_STACK_SIZE of the kernel).
const maxDepth = 16

func (s *ruleset) chain(t *nft.Table, name string, p packet, depth int) outcome {
	if depth > maxDepth {
		return returned
	}
	for _, r := range s.rulesOf(t, name) {
		verdict, ok := s.rule(t, r.Exprs, p)
		if !ok {
			continue
		}
		switch verdict.Kind {
		case expr.VerdictDrop:
			return stopped
		case expr.VerdictAccept, expr.VerdictQueue, expr.VerdictStolen, expr.VerdictStop:
			return passed
		case expr.VerdictReturn:
			return returned
		case expr.VerdictJump, expr.VerdictGoto:
			if o := s.chain(t, verdict.Chain, p, depth+1); o != returned || verdict.Kind == expr.VerdictGoto {
				return o
			}
		}
	}
	return returned
}

func (s *ruleset) rulesOf(t *nft.Table, chain string) []*nft.Rule {
	key := chainName{t.Family, t.Name, chain}
	rules, known := s.rules[key]
	if !known {
		var err error
		if rules, err = s.conn.GetRules(t, &nft.Chain{Name: chain}); err != nil {
			s.fail(fmt.Errorf("nftables: rules of chain %s of table %s: %w", chain, t.Name, err))
		}
		s.rules[key] = rules
	}
	return rules
}

func (s *ruleset) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

// registers hold what a rule has loaded, by their offsets in bytes. Those of 16 bytes and those of 4 are the same.
type registers map[uint32][]byte

func offset(register uint32) uint32 {
	if register < unix.NFT_REG32_00 {
		return (register - unix.NFT_REG_1) * 16
	}
	return (register - unix.NFT_REG32_00) * 4
}

// rule is the verdict of a rule for a packet; ok is false where it does not match, or has none.
func (s *ruleset) rule(t *nft.Table, exprs []expr.Any, p packet) (verdict expr.Verdict, ok bool) {
	loaded := registers{}
	drop := expr.Verdict{Kind: expr.VerdictDrop}
	for _, e := range exprs {
		switch e := e.(type) {
		case *expr.Meta:
			if !e.SourceRegister {
				loaded[offset(e.Register)] = p.meta(e.Key)
			}
		case *expr.Payload:
			if e.OperationType == expr.PayloadLoad {
				loaded[offset(e.DestRegister)] = p.payload(e.Base, e.Offset, e.Len)
			}
		case *expr.Ct:
			if !e.SourceRegister {
				loaded[offset(e.Register)] = p.ct(e.Key)
			}
		case *expr.Bitwise:
			loaded[offset(e.DestRegister)] = bitwise(loaded[offset(e.SourceRegister)], e)
		case *expr.Fib:
			loaded[offset(e.Register)] = nil
		case *expr.Cmp:
			if !holds(loaded[offset(e.Register)], e.Op, e.Data) {
				return verdict, false
			}
		case *expr.Range:
			v := loaded[offset(e.Register)]
			within := holds(v, expr.CmpOpGte, e.FromData) && holds(v, expr.CmpOpLte, e.ToData)
			if v == nil || within != (e.Op == expr.CmpOpEq) {
				return verdict, false
			}
		case *expr.Lookup:
			in, known := s.lookup(t, e, loaded[offset(e.SourceRegister)])
			switch {
			case !known || in == e.Invert:
				return verdict, false
			case e.IsDestRegSet && e.DestRegister == unix.NFT_REG_VERDICT:
				// The library does not read the verdict. Somebody has written one for such packets.
				return expr.Verdict{Kind: expr.VerdictAccept}, true
			case e.IsDestRegSet:
				loaded[offset(e.DestRegister)] = nil
			}
		case *expr.Match:
			if !p.matches(e) {
				return verdict, false
			}
		case *expr.Target:
			if e.Name == "REJECT" {
				return drop, true
			}
		case *expr.Reject:
			return drop, true
		case *expr.Queue:
			return expr.Verdict{Kind: expr.VerdictAccept}, true
		case *expr.Verdict:
			return *e, true
		case *expr.Counter, *expr.Log, *expr.Notrack, *expr.Immediate, *expr.Objref, *expr.FlowOffload:
		default: // limits and the like
			return verdict, false
		}
	}
	return verdict, false
}

func (p packet) ct(key expr.CtKey) []byte {
	switch key {
	case expr.CtKeySTATE:
		return binaryutil.NativeEndian.PutUint32(p.state)
	case expr.CtKeySTATUS, expr.CtKeyMARK:
		return binaryutil.NativeEndian.PutUint32(0)
	}
	return nil
}

func bitwise(v []byte, e *expr.Bitwise) []byte {
	if v == nil || len(v) < len(e.Mask) || len(e.Mask) != len(e.Xor) || len(e.Mask) == 0 {
		return nil
	}
	out := slices.Clone(v)
	for i := range e.Mask {
		out[i] = v[i]&e.Mask[i] ^ e.Xor[i]
	}
	return out
}

// lookup looks a value up in a set. Only those of rules (which begin with __) and those of interfaces are read: a list
// of addresses that somebody keeps may have a hundred thousand, and pods' own are in none.
func (s *ruleset) lookup(t *nft.Table, e *expr.Lookup, value []byte) (in, known bool) {
	if value == nil || !strings.HasPrefix(e.SetName, "__") && len(value) != unix.IFNAMSIZ {
		return false, false
	}
	key := chainName{t.Family, t.Name, e.SetName}
	elements, read := s.sets[key]
	if !read {
		var err error
		elements, err = s.conn.GetSetElements(&nft.Set{Table: t, Name: e.SetName})
		if err != nil {
			s.fail(fmt.Errorf("nftables: set %s of table %s: %w", e.SetName, t.Name, err))
		}
		s.sets[key] = elements
	}
	var below *nft.SetElement // the last that is not above the value: intervals are kept as their ends
	interval := false
	for i, one := range elements {
		if len(one.Key) != len(value) || len(one.KeyEnd) > 0 {
			return false, false // of several values
		}
		interval = interval || one.IntervalEnd
		if bytes.Equal(one.Key, value) && !one.IntervalEnd {
			return true, true
		}
		if bytes.Compare(one.Key, value) <= 0 && (below == nil || bytes.Compare(one.Key, below.Key) > 0) {
			below = &elements[i]
		}
	}
	return interval && below != nil && !below.IntervalEnd, true
}

// matches tells whether a match of xtables is one of all packets, or of the state of this one's connection.
func (p packet) matches(m *expr.Match) bool {
	switch info := m.Info.(type) {
	case *xt.Comment:
		return true
	case *xt.ConntrackMtinfo1:
		return p.inState(info.ConntrackMtinfoBase, uint32(info.StateMask))
	case *xt.ConntrackMtinfo2:
		return p.inState(info.ConntrackMtinfoBase, uint32(info.StateMask))
	case *xt.ConntrackMtinfo3:
		return p.inState(info.ConntrackMtinfoBase, uint32(info.StateMask))
	case *xt.Unknown:
		if m.Name == "state" && len(*info) >= 4 {
			return binary.NativeEndian.Uint32(*info)&p.state != 0
		}
	}
	return m.Name == "comment"
}

func (p packet) inState(m xt.ConntrackMtinfoBase, mask uint32) bool {
	if xt.ConntrackFlags(m.MatchFlags)&^xt.ConntrackStateAlias != xt.ConntrackState {
		return false
	}
	return (mask&p.state != 0) != (xt.ConntrackFlags(m.InvertFlags)&xt.ConntrackState != 0)
}
