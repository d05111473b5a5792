package registry

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestHostsThatGetNoCredentialsAreListed, unless the file says who gets which.
func TestHostsThatGetNoCredentialsAreListed(t *testing.T) {
	dir := t.TempDir()
	for name, file := range map[string]string{
		"docker.io": "server = \"https://registry-1.docker.io\"\n[host.\"https://m.test\"]\n[host.\"http://p.test\"]\n" +
			"[host.\"https://yes.test\"]\nberth_credentials = \"tls\"\n[host.\"https://no.test\"]\n" +
			"berth_credentials = \"never\"\n[host.\"https://own.test\"]\n[host.\"https://own.test\".header]\n" +
			"authorization = \"Basic eDp5\"\n",
		"a.test":       "server = \"http://a.test\"\n",
		"b.test:5000":  "[host.\"http://b.test:5000\"]\n",
		"c.test_5000_": "[host.\"https://c.test:5000\"]\n[host.\"http://c.test:5000\"]\nskip_verify = true\n",
		"d.test":       "server = \"http://d.test\"\nberth_credentials = \"plain\"\n",
		"localhost":    "server = \"http://localhost\"\n",
		"moved.test":   "server = \"https://new.test\"\n",
		"plain.test":   "server = \"http://new.test\"\n",
		"_default":     "[host.\"https://all.test\"]\n",
		"broken.test":  "[host.\"https://x.test\"\n",
		"none.test":    "",
	} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "hosts.toml"), []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := []Withheld{
		{"_default", "https://all.test", true}, {"a.test", "http://a.test", false},
		{"b.test:5000", "http://b.test:5000", false}, {"c.test:5000", "http://c.test:5000", false},
		{"c.test:5000", "https://c.test:5000", false}, {"docker.io", "http://p.test", true},
		{"docker.io", "https://m.test", true}, {"plain.test", "http://new.test", false},
	}
	if got := WithheldHosts(dir); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if got := WithheldHosts("/no/such"); got != nil {
		t.Errorf("a directory that is not there has %v", got)
	}
}
