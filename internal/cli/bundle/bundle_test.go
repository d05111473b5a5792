package bundle

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestLargeNumbersOfFactsStayWhole.
func TestLargeNumbersOfFactsStayWhole(t *testing.T) {
	got, err := json.Marshal(facts(map[string]string{"info": `{"pid": 18446744073709551615}`}, []string{"pid"}))
	if err != nil || string(got) != `{"pid":18446744073709551615}` {
		t.Errorf("%s, %v", got, err)
	}
}

// TestTheDebugSocketIsThatOfTheConfiguration. Seen to fail where it was always debug.sock below state.
func TestTheDebugSocketIsThatOfTheConfiguration(t *testing.T) {
	for dump, want := range map[string]string{
		"": "/run/berth/debug.sock",
		"state = \"/run/berth\" # default\n[debug]\naddress = \"\" # default\n": "/run/berth/debug.sock",
		"[debug]\naddress = \"/run/other.sock\" # /etc/berth/config.toml:7\n":   "/run/other.sock",
		"[debug]\naddress = \"unix:///run/other.sock\"\n":                       "/run/other.sock",
	} {
		if got, err := debugSocket([]byte(dump), "/run/berth"); got != want || err != nil {
			t.Errorf("%q: %q, %v", dump, got, err)
		}
	}
	_, err := debugSocket([]byte("[debug]\naddress = \"none\"\n"), "/run/berth")
	if err == nil || !strings.Contains(err.Error(), "debug.address") {
		t.Errorf("without a socket: %v", err)
	}
}
