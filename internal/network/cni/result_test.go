package cni

import (
	"fmt"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
)

// TestThePodsAddressesAreThoseOfItsInterface: a chain of plugins may add interfaces to the pod, before or after its own
// in the list, and some plugins report the host's end, or no interfaces at all. containerd takes those of eth0, too.
func TestThePodsAddressesAreThoseOfItsInterface(t *testing.T) {
	const ends = `"interfaces":[{"name":"veth1"},{"name":"net1","sandbox":"/ns"},{"name":"eth0","sandbox":"/ns"}]`
	for _, test := range []struct{ claim, result, want string }{
		{"of several interfaces", `{%s,"ips":[{"address":"192.168.7.2/24","interface":1},
			{"address":"10.1.0.5/24","interface":2},{"address":"10.1.0.1/24","interface":0},
			{"address":"fd00::5/64","interface":2}]}`, "[10.1.0.5 fd00::5]"},
		{"that names no interface", `{%s,"ips":[{"address":"192.168.7.2/24","interface":1},
			{"address":"10.1.0.5/24"}]}`, "[10.1.0.5]"},
		{"of another interface alone", `{%s,"ips":[{"address":"192.168.7.2/24","interface":1}]}`, "[192.168.7.2]"},
		{"of an interface that is in no sandbox", `{"interfaces":[{"name":"eth0"}],%.0s"ips":[
			{"address":"10.1.0.5/24","interface":0}]}`, "[10.1.0.5]"},
		{"of the host's eth0 beside the pod's", `{"interfaces":[{"name":"eth0"},{"name":"eth0","sandbox":"/ns"}],%.0s"ips":[
			{"address":"10.1.0.1/24","interface":0},{"address":"10.1.0.5/24","interface":1}]}`, "[10.1.0.5]"},
		{"of the host alone", `{%s,"ips":[{"address":"10.1.0.1/24","interface":0}]}`,
			"the plugins gave the pod no address"},
	} {
		raw, err := current.NewResult([]byte(`{"cniVersion":"1.0.0",` + fmt.Sprintf(test.result, ends)[1:]))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if result, err := convert(raw); err != nil {
			got = err.Error()
		} else {
			got = fmt.Sprint(result.IPs)
		}
		if got != test.want {
			t.Errorf("%s: %s, want %s", test.claim, got, test.want)
		}
	}
}
