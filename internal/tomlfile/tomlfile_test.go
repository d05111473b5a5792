package tomlfile

import (
	"errors"
	"testing"
	"time"
)

// Duration is a value that is read from a text.
type Duration time.Duration

func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}

// TestWhatIsWrongIsSaidInTheWordsOfTOML. Seen to fail without the words for durations, which were told to be tables.
func TestWhatIsWrongIsSaidInTheWordsOfTOML(t *testing.T) {
	type embedded struct {
		Verify *bool    `toml:"verify"`
		Paths  []string `toml:"paths"`
	}
	type file struct {
		Server string `toml:"server"`
		embedded
		Idle  Duration            `toml:"idle"`
		Count int                 `toml:"count"`
		Host  map[string]embedded `toml:"host"`
	}
	for text, want := range map[string]string{
		"server = 5":               "f:1: server: it is an integer, and has to be a string in quotes",
		"\nverify = \"yes\"":       "f:2: verify: it is a string, and has to be true or false",
		"paths = \"/a\"":           "f:1: paths: it is a string, and has to be a list of strings",
		"idle = [1]":               `f:1: idle: it is an array, and has to be a duration in quotes, such as "30s"`,
		"count = true":             "f:1: count: it is a boolean, and has to be a whole number",
		"host = 1":                 "f:1: host: it is an integer, and has to be a table",
		"servr = 1\nother = 2":     "f:1: servr: unknown key\nf:2: other: unknown key",
		"server = \n":              "f:1:10: unexpected character U+000A at start of value",
		"[host.\"a\"]\nverify = 1": "f:2: host.a.verify: it is an integer, and has to be true or false",
	} {
		if err := Located(Decode([]byte(text), new(file)), "f", nil); err == nil || err.Error() != want {
			t.Errorf("%q:\n%v, want\n%s", text, err, want)
		}
	}
	broken := errors.New("broken")
	if err := Located(broken, "f", nil); !errors.Is(err, broken) || err.Error() != "f: broken" {
		t.Error(err)
	}
}
