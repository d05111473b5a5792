package doctor

import (
	"strings"
	"testing"
)

func TestNRI(t *testing.T) {
	for _, c := range []struct {
		daemon *Daemon
		level  Level
		detail string
	}{
		{nil, Good, "not checked"},
		{&Daemon{}, Good, "off: nri.enable"},
		{&Daemon{NRI: &NRI{Socket: "/s"}}, Good, "off, until"},
		{&Daemon{NRI: &NRI{Socket: "/s", Failure: "no plugin's name: x"}}, Poor, "no plugin's name: x"},
		{&Daemon{NRI: &NRI{Serving: true, Plugins: 2}}, Good, "2 connected; further plugins cannot"},
		{&Daemon{NRI: &NRI{Serving: true, Plugins: 2, Socket: "/s"}}, Good, "2 connected, others may connect at /s"},
		{&Daemon{NRI: &NRI{Serving: true, Plugins: 1, Socket: "/s", NotRunning: []string{"10-a", "20-b"}}}, Poor,
			"1 connected; programs in nri.plugin_path that do not run, and pods start without them: 10-a, 20-b"},
	} {
		f := checkNRI(t.Context(), Config{Daemon: c.daemon})
		if f.Level != c.level || !strings.Contains(f.Detail, c.detail) {
			t.Errorf("%+v: %+v", c.daemon, f)
		}
	}
}
