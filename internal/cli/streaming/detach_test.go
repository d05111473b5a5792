package streaming

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestDetachKeysEndTheInputAndNothingElseIsLost(t *testing.T) {
	for _, c := range []struct {
		typed, passed string
		detached      bool
	}{
		{"hello", "hello", false},
		{"a\x10\x11b", "a", true},
		{"a\x10b", "a\x10b", false},
		{"a\x10\x10\x11", "a\x10", true},
		{"\x11\x10", "\x11\x10", false},
		{"\x10\x11", "", true},
		{strings.Repeat("\x10x", 100), strings.Repeat("\x10x", 100), false},
	} {
		for name, in := range map[string]io.Reader{
			"at once": strings.NewReader(c.typed), "byte by byte": iotest.OneByteReader(strings.NewReader(c.typed)),
		} {
			detached := false
			got, err := io.ReadAll(&DetachReader{Reader: in, Detach: func() { detached = true }})
			if err != nil || string(got) != c.passed || detached != c.detached {
				t.Errorf("%q %s: got %q, detached %v, %v", c.typed, name, got, detached, err)
			}
		}
	}
}
