package doctor

import (
	"strings"
	"testing"
)

func TestImageVerifiers(t *testing.T) {
	for _, c := range []struct {
		daemon *Daemon
		level  Level
		detail string
	}{
		{nil, Good, "not checked"},
		{&Daemon{}, Good, "none: image_verifier.bin_dir"},
		{&Daemon{Verifiers: &Verifiers{Directory: "/v", Failure: "/v has no image verifier"}}, Poor,
			"no image can be pulled: /v has no image verifier"},
		{&Daemon{Verifiers: &Verifiers{Directory: "/v", Programs: []string{"a", "b"}}}, Good, "2 in /v: a, b"},
	} {
		f := checkVerifiers(t.Context(), Config{Daemon: c.daemon})
		if f.Level != c.level || !strings.Contains(f.Detail, c.detail) {
			t.Errorf("%+v: %+v", c.daemon, f)
		}
	}
}
