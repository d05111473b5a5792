package resolvconf

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAPodGetsServersThatItReaches. Seen to fail when a pod got the node's file, whatever is in it.
func TestAPodGetsServersThatItReaches(t *testing.T) {
	const (
		none     = "-" // there is no such file
		stub     = "# by systemd-resolved\nnameserver 127.0.0.53\noptions edns0 trust-ad\nsearch example.org\n"
		upstream = "nameserver 192.0.2.1\nnameserver 2001:db8::1\nsearch example.org\n"
		own      = "nameserver 198.51.100.1\n"
	)
	for name, c := range map[string]struct{ node, upstream, want string }{
		"servers of its own":            {own, upstream, own},
		"the stub":                      {stub, upstream, upstream},
		"the stub's second address":     {"nameserver 127.0.0.54\n", upstream, upstream},
		"the stub, and another server":  {stub + own, upstream, stub + own},
		"the stub in IPv6":              {"nameserver ::ffff:127.0.0.53\nnameserver ::1\n", upstream, upstream},
		"the stub, and nothing above":   {stub, none, stub},
		"the stub, and no server above": {stub, "# none\n", stub},
		"the stub above, too":           {stub, stub, stub},
		"a comment is no server":        {"#nameserver 198.51.100.1\n" + stub, upstream, upstream},
		"a cache on the node":           {"nameserver 127.0.0.1\n", none, "nameserver 127.0.0.1\n"},
		"no server":                     {"search example.org\n", upstream, upstream},
		"no file":                       {none, none, ""},
		"no file but resolved's":        {none, upstream, upstream},
		"a server with a zone":          {"nameserver fe80::1%eth0\n", upstream, "nameserver fe80::1%eth0\n"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			f := Files{Node: filepath.Join(dir, "node"), Upstream: filepath.Join(dir, "upstream")}
			for path, content := range map[string]string{f.Node: c.node, f.Upstream: c.upstream} {
				if content == none {
					continue
				}
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := f.OfPod(); err != nil || string(got) != c.want {
				t.Errorf("a pod gets %q, %v", got, err)
			}
			if got, err := f.OfNode(); err != nil || string(got) != strings.TrimPrefix(c.node, none) {
				t.Errorf("a pod in the node's network gets %q, %v", got, err)
			}
		})
	}
}

func TestAFileThatIsTooLargeIsRefused(t *testing.T) {
	f := Files{Node: filepath.Join(t.TempDir(), "node")}
	if err := os.WriteFile(f.Node, make([]byte, maxSize+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := f.OfPod(); err == nil || !strings.Contains(err.Error(), f.Node) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := os.Truncate(f.Node, maxSize); err != nil {
		t.Fatal(err)
	}
	if got, err := f.OfNode(); err != nil || len(got) != maxSize {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
