package forward

import "testing"

func TestParsePort(t *testing.T) {
	for text, want := range map[string]Port{"80": {80, 80}, "8080:80": {8080, 80}, ":80": {0, 80}, "0:80": {0, 80}} {
		if got, err := ParsePort(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", ":", "80:", "0", "a", "80:a", "-1:80", "65536", "1:2:3", "80/tcp"} {
		if got, err := ParsePort(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}
