package bridge

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
)

// A record that is spoilt, or gone, is made anew of what the caller knows of the endpoint and of what the kernel says: the pod's interface
// has the addresses and their range, and a name tells the other end.

// rebuild makes records anew of live endpoints that have none, and decides on a range where the record of that is gone. It returns the
// endpoints of which neither the kernel nor the caller knows an address.
func (b *Bridge) rebuild(live map[string]Endpoint) (lost map[string]error) {
	inKernel := map[string][]netip.Prefix{}
	b.mu.Lock()
	defer b.mu.Unlock()
	var missing []string
	for id := range live {
		if b.records[id] == nil {
			missing = append(missing, id)
		}
	}
	slices.Sort(missing)
	if len(b.records)+len(missing) == 0 || len(missing) == 0 && len(b.pools) > 0 {
		return nil
	}
	for id, e := range live {
		if has, err := interfaceAddresses(e.NetNS); err != nil {
			b.log.Warn("the addresses of a pod's interface could not be read", "pod", e.Pod, "error", err)
		} else if len(has) > 0 {
			inKernel[id] = has
		}
	}
	if len(b.pools) == 0 {
		if err := b.rebuildRange(inKernel); err != nil {
			b.log.Error("the range of the pods' network could not be found again", "bridge", b.cfg.Name, "error", err)
		}
	}
	lost = map[string]error{}
	for _, id := range missing {
		if err := b.rebuildRecord(live[id], inKernel[id]); err != nil {
			lost[id] = err
		}
	}
	return lost
}

// rebuildRange takes the range that was written down, or else that of the bridge itself, or of a pod's interface. mu is held.
func (b *Bridge) rebuildRange(inKernel map[string][]netip.Prefix) error {
	cidrs := b.former
	if len(cidrs) == 0 {
		has, err := b.ownAddresses()
		if err != nil {
			return err
		}
		cidrs = masked(has)
	}
	for _, id := range slices.Sorted(maps.Keys(inKernel)) {
		if len(cidrs) == 0 {
			cidrs = masked(inKernel[id])
		}
	}
	if len(cidrs) == 0 {
		return nil // nobody has an address: the range is chosen as ever
	}
	if err := CheckCIDRs(cidrs); err != nil {
		return err
	}
	if len(b.former) == 0 {
		b.log.Warn("the record of the pods' range was spoilt or gone, and is made anew", "range", cidrText(cidrs))
	}
	if err := writeFile(filepath.Join(b.cfg.StateDir, networkFile), network{CIDRs: cidrs}); err != nil {
		return err
	}
	return b.setPools(cidrs)
}

func masked(all []netip.Prefix) (ranges []netip.Prefix) {
	for _, p := range all {
		ranges = append(ranges, p.Masked())
	}
	// IPv4 first, as everywhere.
	slices.SortFunc(ranges, func(a, c netip.Prefix) int { return a.Addr().BitLen() - c.Addr().BitLen() })
	return ranges
}

// rebuildRecord makes an endpoint's record anew. mu is held.
func (b *Bridge) rebuildRecord(e Endpoint, inKernel []netip.Prefix) error {
	r := &record{
		ID: e.ID, Pod: e.Pod, NetNS: e.NetNS, Link: vethName(b.cfg.Name, e.ID), Ports: e.Ports, Created: time.Now().UTC(), open: true,
	}
	for _, p := range inKernel {
		r.Addresses = append(r.Addresses, p.Addr())
	}
	from := "the kernel"
	if len(r.Addresses) == 0 {
		r.Addresses, from = slices.Clone(e.Addresses), "the pod's record"
	}
	slices.SortFunc(r.Addresses, func(a, c netip.Addr) int { return a.BitLen() - c.BitLen() })
	if err := r.check(e.ID); err != nil {
		return fmt.Errorf("its record is gone, and is not made anew: %w", err)
	}
	if len(b.pools) > 0 {
		if others := b.claim(r); len(others) > 0 {
			for _, p := range b.pools {
				p.store.ReleaseByID(r.ID, Interface)
			}
			return fmt.Errorf("its record is gone, and its addresses %v are another pod's, or of another network", others)
		}
	}
	if err := writeFile(b.recordPath(r.ID), r); err != nil {
		return fmt.Errorf("record of the pod's network: %w", err)
	}
	b.records[r.ID] = r
	b.log.Warn("the record of a pod's network was spoilt or gone, and is made anew", "pod_id", r.ID, "pod", r.Pod,
		"addresses", fmt.Sprint(r.Addresses), "from", from)
	return nil
}

// interfaceAddresses are those of the pod's interface that others reach, with their ranges; none: there is no namespace, or no interface.
func interfaceAddresses(path string) (found []netip.Prefix, err error) {
	ns, err := openNamespace(path)
	if err != nil {
		return nil, nil
	}
	defer ns.Close()
	err = inside(ns, func() error {
		found, err = addressesOf(Interface)
		return err
	})
	return found, err
}

// ownAddresses are those of the bridge, if it is there and is Berth's.
func (b *Bridge) ownAddresses() ([]netip.Prefix, error) {
	link, err := netlink.LinkByName(b.cfg.Name)
	if isNoLink(err) || err == nil && link.Attrs().HardwareAddr.String() != bridgeMAC(b.cfg.Name).String() {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("bridge %s: %w", b.cfg.Name, err)
	}
	return addressesOf(b.cfg.Name)
}

// addressesOf are the addresses of an interface in this thread's network namespace that others reach.
func addressesOf(name string) (found []netip.Prefix, err error) {
	h, err := routes()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	link, err := h.LinkByName(name)
	if isNoLink(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	addrs, err := globalAddrs(h, link)
	for _, a := range addrs {
		found = append(found, prefixOf(a.IPNet))
	}
	return found, err
}

// HasInterface tells whether there is an interface of the bridge for an endpoint, on record or not.
func (b *Bridge) HasInterface(id string) bool {
	h, err := routes()
	if err != nil {
		return false
	}
	defer h.Close()
	_, err = h.LinkByName(vethName(b.cfg.Name, id))
	return err == nil
}

// removeSpoilt removes the files of records that could not be read and are of no live endpoint.
func (b *Bridge) removeSpoilt() error {
	dir := filepath.Join(b.cfg.StateDir, endpointsDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var errs []error
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), ".json"); ok && b.records[id] == nil {
			errs = append(errs, removeFile(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
