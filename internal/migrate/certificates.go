package migrate

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// crioCerts are where CRI-O looks for the certificates of a registry, besides certs.d in the directory of
// registries.conf: before that, and after it. The first of the directories that has one for the host counts.
var crioCerts = [2]string{"/root/.config/containers/certs.d", "/etc/docker/certs.d"}

// trusted are the certificates of one host in Berth's configuration, as a hosts.toml names them.
type trusted struct {
	authorities []string
	clients     [][]string // pairs of a certificate and its key
}

// add puts the certificates into a table of hosts.toml, whose host is asked over TLS.
func (c trusted) add(entry map[string]any) {
	if len(c.authorities) > 0 {
		entry["ca"] = c.authorities
	}
	if len(c.clients) > 0 {
		entry["client"] = c.clients
	}
}

// certificates copies the certificates of registries that CRI-O finds in directories to hosts_dir. A host that gets no
// hosts.toml needs no more: Berth finds them by their names, as CRI-O does.
func (t *crioConfig) certificates(containers string) error {
	t.certs = map[string]trusted{}
	for _, dir := range []string{crioCerts[0], filepath.Join(containers, "certs.d"), crioCerts[1]} {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			continue // root can read them: this is a dry run of somebody else
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			from := filepath.Join(dir, e.Name())
			info, err := os.Stat(from)
			if err != nil || !info.IsDir() || strings.HasPrefix(e.Name(), ".") {
				continue
			}
			if _, found := t.certs[e.Name()]; found {
				t.note(from, Needless, "CRI-O uses the certificates of another directory for this registry")
				continue
			}
			if err := t.certificatesOf(e.Name(), from); err != nil {
				return err
			}
		}
	}
	return nil
}

// certificatesOf copies the certificates of one host from its directory.
func (t *crioConfig) certificatesOf(host, dir string) error {
	to := filepath.Join(t.dir, "certs.d", host)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var names []string
	for _, e := range entries {
		if info, err := os.Stat(filepath.Join(dir, e.Name())); err == nil && info.Mode().IsRegular() {
			names = append(names, e.Name())
		}
	}
	var found trusted
	put := func(name string, mode fs.FileMode) error {
		from := filepath.Join(dir, name)
		data, err := os.ReadFile(from)
		if err == nil {
			t.Files = append(t.Files, File{Path: filepath.Join(to, name), Mode: mode, Data: data, CopyOf: from})
			t.note(from, Translated, filepath.Join(to, name))
		}
		return err
	}
	for _, name := range names {
		switch base := strings.TrimSuffix(name, filepath.Ext(name)); filepath.Ext(name) {
		case ".crt":
			if err := put(name, 0o644); err != nil {
				return err
			}
			found.authorities = append(found.authorities, filepath.Join(to, name))
		case ".cert":
			if !slices.Contains(names, base+".key") {
				t.left(filepath.Join(dir, name), "not copied: its key, %s.key, is missing", base)
				continue
			}
			if err := errors.Join(put(name, 0o644), put(base+".key", 0o600)); err != nil {
				return err
			}
			found.clients = append(found.clients, []string{filepath.Join(to, name), filepath.Join(to, base+".key")})
		case ".key":
			if !slices.Contains(names, base+".cert") {
				t.left(filepath.Join(dir, name), "not copied: its certificate, %s.cert, is missing", base)
			}
		}
	}
	t.certs[host] = found
	if len(found.authorities)+len(found.clients) > 0 {
		t.hostsDir(dir)
	}
	return nil
}

// hostsDir has Berth read the directory of what is written for registries. from is where the first of that comes from.
func (t *crioConfig) hostsDir(from string) {
	if _, given := t.settings["hosts_dir"]; !given {
		t.set(from, "hosts_dir", filepath.Join(t.dir, "certs.d"))
	}
}
