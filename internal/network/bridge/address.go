package bridge

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
)

// pool gives out the addresses of one prefix through host-local's allocator. Its store is in memory and is filled from
// the endpoints' records at start: the file for each address that host-local's own store keeps, and reads
// through to find a pod's, would make a start slower with every pod. The bridge's lock guards it.
type pool struct {
	prefix  netip.Prefix
	gateway netip.Addr
	alloc   *allocator.IPAllocator
	ranges  *allocator.RangeSet
	store   *memoryStore
}

func newPool(prefix netip.Prefix) (*pool, error) {
	prefix = prefix.Masked()
	ranges := &allocator.RangeSet{{Subnet: types.IPNet(ipNet(prefix))}}
	if err := ranges.Canonicalize(); err != nil {
		return nil, fmt.Errorf("pod CIDR %s: %w: %w", prefix, err, errdefs.ErrInvalidArgument)
	}
	store := &memoryStore{owners: map[netip.Addr]string{}}
	return &pool{
		prefix: prefix, gateway: prefix.Addr().Next(), ranges: ranges, store: store,
		alloc: allocator.NewIPAllocator(ranges, store, 0),
	}, nil
}

// get gives an address to an endpoint, the wanted one if it is free.
func (p *pool) get(id string, wanted netip.Addr) (netip.Addr, error) {
	if wanted.IsValid() && p.claim(id, wanted) {
		return wanted, nil
	}
	got, err := p.alloc.Get(id, Interface, nil)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("pod network %s has no address left (%d in use): %w", p.prefix,
			len(p.store.owners), errdefs.ErrResourceExhausted)
	}
	addr, _ := netip.AddrFromSlice(got.Address.IP)
	return addr.Unmap(), nil
}

// claim takes one address, and tells whether it is the endpoint's now.
func (p *pool) claim(id string, addr netip.Addr) bool {
	if addr == p.gateway || !p.ranges.Contains(addr.AsSlice()) {
		return false
	}
	owner, taken := p.store.owners[addr]
	if !taken {
		p.store.owners[addr] = id
	}
	return !taken || owner == id
}

// memoryStore is host-local's store.
type memoryStore struct {
	owners map[netip.Addr]string
	last   netip.Addr // where the round through the range stands, so that an address is not soon used again
}

func (s *memoryStore) Lock() error   { return nil }
func (s *memoryStore) Unlock() error { return nil }
func (s *memoryStore) Close() error  { return nil }

func (s *memoryStore) Reserve(id, _ string, ip net.IP, _ string) (bool, error) {
	addr, ok := netip.AddrFromSlice(ip)
	if !ok {
		return false, errors.New("not an IP address")
	}
	addr = addr.Unmap()
	if _, taken := s.owners[addr]; taken {
		return false, nil
	}
	s.owners[addr], s.last = id, addr
	return true, nil
}

func (s *memoryStore) LastReservedIP(string) (net.IP, error) {
	if !s.last.IsValid() {
		return nil, nil
	}
	return s.last.AsSlice(), nil
}

func (s *memoryStore) ReleaseByID(id, _ string) error {
	for addr, owner := range s.owners {
		if owner == id {
			delete(s.owners, addr)
		}
	}
	return nil
}

// GetByID is how the allocator refuses a second address to one endpoint. The bridge never asks for one.
func (s *memoryStore) GetByID(string, string) []net.IP { return nil }

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// CheckCIDRs says whether these can be the pods' ranges: one of IPv4, one of IPv6, or both.
func CheckCIDRs(cidrs []netip.Prefix) error {
	for i, c := range cidrs {
		if !c.IsValid() || c.Addr().Is4In6() {
			return fmt.Errorf("pod CIDR %d is not a prefix: %w", i, errdefs.ErrInvalidArgument)
		}
		if c.Addr() != c.Masked().Addr() {
			return fmt.Errorf("pod CIDR %s has host bits set, its network is %s: %w", c, c.Masked(),
				errdefs.ErrInvalidArgument)
		}
		if !c.Addr().IsPrivate() && !c.Addr().IsGlobalUnicast() {
			return fmt.Errorf("pod CIDR %s is not a range of unicast addresses: %w", c, errdefs.ErrInvalidArgument)
		}
		if _, err := newPool(c); err != nil {
			return err
		}
		if slices.ContainsFunc(cidrs[:i], func(o netip.Prefix) bool { return o.Addr().Is4() == c.Addr().Is4() }) {
			return fmt.Errorf("pod CIDR %s: at most one range of IPv4 and one of IPv6 is supported: %w", c,
				errdefs.ErrInvalidArgument)
		}
	}
	return nil
}
