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

// A record that is spoilt, or gone, is made anew of what the caller knows of the endpoint and of what the kernel
// says: the pod's interface has the addresses and their range, and a name tells the other end.

// rebuild makes records anew of live endpoints that have none, and decides on a range where the record of that is
// gone. It returns the endpoints of which neither the kernel nor the caller knows an address.
func (es *endpoints) rebuild(live map[string]Endpoint) (lost map[string]error) {
	inKernel := map[string][]netip.Prefix{}
	es.mu.Lock()
	defer es.mu.Unlock()
	var missing []string
	for id := range live {
		if es.records[id] == nil {
			missing = append(missing, id)
		}
	}
	slices.Sort(missing)
	if len(es.records)+len(missing) == 0 || len(missing) == 0 && len(es.pools) > 0 {
		return nil
	}
	for id, e := range live {
		if has, err := interfaceAddresses(e.NetNS); err != nil {
			es.log.Warn("the addresses of a pod's interface could not be read", "pod", e.Pod, "error", err)
		} else if len(has) > 0 {
			inKernel[id] = has
		}
	}
	if len(es.pools) == 0 {
		if err := es.rebuildRange(inKernel); err != nil {
			es.log.Error("the range of the pods' network could not be found again", "bridge", es.cfg.Name, "error", err)
		}
	}
	lost = map[string]error{}
	for _, id := range missing {
		if err := es.rebuildRecord(live[id], inKernel[id]); err != nil {
			lost[id] = err
		}
	}
	return lost
}

// rebuildRange takes the range that was written down, or else that of the bridge itself, or of a pod's interface. mu
// is held.
func (es *endpoints) rebuildRange(inKernel map[string][]netip.Prefix) error {
	cidrs := es.former
	if len(cidrs) == 0 {
		has, err := es.ownAddresses()
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
	if len(es.former) == 0 {
		es.log.Warn("the record of the pods' range was spoilt or gone, and is made anew", "range", cidrText(cidrs))
	}
	if err := writeFile(filepath.Join(es.cfg.StateDir, networkFile), network{CIDRs: cidrs}); err != nil {
		return err
	}
	return es.setPools(cidrs)
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
func (es *endpoints) rebuildRecord(e Endpoint, inKernel []netip.Prefix) error {
	r := &record{
		ID: e.ID, Pod: e.Pod, NetNS: e.NetNS, Link: vethName(es.cfg.Name, e.ID), Ports: e.Ports,
		Created: time.Now().UTC(), open: true,
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
	if len(es.pools) > 0 {
		if others := es.claim(r); len(others) > 0 {
			for _, p := range es.pools {
				p.store.ReleaseByID(r.ID, Interface)
			}
			return fmt.Errorf("its record is gone, and its addresses %v are another pod's, or of another network", others)
		}
	}
	if err := writeFile(es.recordPath(r.ID), r); err != nil {
		return fmt.Errorf("record of the pod's network: %w", err)
	}
	es.records[r.ID] = r
	es.log.Warn("the record of a pod's network was spoilt or gone, and is made anew", "pod_id", r.ID, "pod", r.Pod,
		"addresses", fmt.Sprint(r.Addresses), "from", from)
	return nil
}

// interfaceAddresses are those of the pod's interface that others reach, with their ranges; none: there is no
// namespace, or no interface.
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
func (es *endpoints) ownAddresses() ([]netip.Prefix, error) {
	link, err := netlink.LinkByName(es.cfg.Name)
	if isNoLink(err) || err == nil && link.Attrs().HardwareAddr.String() != bridgeMAC(es.cfg.Name).String() {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("bridge %s: %w", es.cfg.Name, err)
	}
	return addressesOf(es.cfg.Name)
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
func (es *endpoints) removeSpoilt() error {
	dir := filepath.Join(es.cfg.StateDir, endpointsDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	es.mu.Lock()
	defer es.mu.Unlock()
	var errs []error
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), ".json"); ok && es.records[id] == nil {
			errs = append(errs, removeFile(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
