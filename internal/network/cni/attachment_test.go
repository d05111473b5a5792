package cni

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/containernetworking/cni/libcni"
)

// A pod that had addresses asks for them in every way that plugins know: in the environment, as a capability, and,
// where there are two, as arguments of the configuration, of which what was there before stays.
func TestAddressesOfBeforeAreAskedFor(t *testing.T) {
	list, err := libcni.NetworkConfFromBytes([]byte(`{"cniVersion":"1.0.0","name":"n","plugins":[
		{"type":"bridge","args":{"cni":{"labels":["x"]},"other":1}},{"type":"portmap"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	one, two := netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fd00::3")
	for _, before := range [][]netip.Addr{nil, {one}, {one, two}} {
		r, err := newRecord(Attachment{ID: "p", Before: before}, list)
		if err != nil {
			t.Fatal(err)
		}
		asks := slices.ContainsFunc(r.Args, func(a [2]string) bool { return a == [2]string{"IP", "10.1.2.3"} })
		if asks != (len(before) > 0) {
			t.Errorf("%v: the environment has %v", before, r.Args)
		}
		var ips []netip.Addr
		if raw := r.Capabilities["ips"]; raw != nil {
			if err := json.Unmarshal(raw, &ips); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(ips, before) {
			t.Errorf("%v: the capability has %v", before, ips)
		}
		var network struct {
			Plugins []struct {
				Type string
				Args struct {
					CNI struct {
						IPs    []netip.Addr
						Labels []string
					}
					Other int
				}
			}
		}
		if err := json.Unmarshal(r.Network, &network); err != nil || len(network.Plugins) != 2 {
			t.Fatalf("%v, %s", err, r.Network)
		}
		for _, p := range network.Plugins {
			if len(before) == 2 && !reflect.DeepEqual(p.Args.CNI.IPs, before) || len(before) < 2 && p.Args.CNI.IPs != nil {
				t.Errorf("%v: plugin %s has %v", before, p.Type, p.Args)
			}
		}
		if first := network.Plugins[0].Args; first.Other != 1 || len(first.CNI.Labels) != 1 {
			t.Errorf("%v: what was there before is %+v", before, first)
		}
		if _, _, err := r.runtime(); err != nil {
			t.Error(err)
		}
	}
}
