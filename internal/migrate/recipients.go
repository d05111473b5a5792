package migrate

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/image/registry"
)

// unsent reports hosts that get the credentials of a pull from the other runtime, and not from Berth.
func (p *Plan) unsent(from string, hosts []registry.Withheld) {
	if len(hosts) == 0 {
		return
	}
	var all []string
	for i, h := range hosts {
		if i > 0 && hosts[i-1].Registry == h.Registry {
			all[len(all)-1] += ", " + h.URL
			continue
		}
		all = append(all, h.Registry+": "+h.URL)
	}
	p.left(from, "Berth sends no credentials of a pull to these hosts, and %s does: %s. By hand, for a host that asks "+
		"for some: in its table, berth_credentials = \"tls\", or \"plain\" if it is asked over plain HTTP", p.Runtime,
		strings.Join(all, "; "))
}

// withheldIn are the hosts in hosts.toml files below a directory that a plan writes which get no credentials of a pull.
func withheldIn(files []File, dir string) ([]registry.Withheld, error) {
	temp, err := os.MkdirTemp("", "berth-migrate-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temp)
	for _, f := range files {
		name, err := filepath.Rel(dir, f.Path)
		if err != nil || !filepath.IsLocal(name) {
			continue
		}
		path := filepath.Join(temp, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, f.Data, 0o600); err != nil {
			return nil, err
		}
	}
	return registry.WithheldHosts(temp), nil
}

// sameRegistry tells whether a host is a registry itself and no mirror of it.
func sameRegistry(host, registry string) bool {
	if registry == dockerHub {
		return host == dockerHub || host == "registry-1.docker.io" || host == "index.docker.io"
	}
	return strings.EqualFold(host, registry)
}

const dockerHub = "docker.io"

// plain are hosts that stand for a registry itself, and are asked over plain HTTP, and for which containerd has
// credentials. Berth sends none over plain HTTP unless hosts.toml says so.
func (r *registries) plain(name string, urls []string) []string {
	var out []string
	for _, url := range urls {
		host, isPlain := strings.CutPrefix(url, "http://")
		host, _, _ = strings.Cut(host, "/")
		if isPlain && sameRegistry(host, name) && (r.auths[name].user != "" || r.auths[host].user != "") {
			out = append(out, host)
		}
	}
	return out
}

// mirrorsOf reports credentials for hosts that are mirrors in hosts.toml files that stay as they are.
func (r *registries) mirrorsOf(p *Plan, dir string, hosts []registry.Withheld) {
	for _, host := range slices.Sorted(mapKeys(r.auths)) {
		for _, h := range hosts {
			if _, address, _ := strings.Cut(h.URL, "://"); h.Mirror && address == host {
				p.left(r.key("configs", host, "auth"), "%s is a mirror of %s in %s, and Berth uses these credentials only for "+
					"images whose names begin with %s. By hand: a header Authorization in the mirror's table, or "+
					"berth_credentials if it takes the credentials of %s", host, h.Registry, dir, host, h.Registry)
			}
		}
	}
}

// crioLogins are where CRI-O looks for credentials when no key says where.
var crioLogins = []string{"/run/containers/0/auth.json", "/root/.config/containers/auth.json",
	"/root/.docker/config.json"}

// credentials has CRI-O's file with credentials stay in use.
func (t *crioConfig) credentials(from, path string) {
	if _, err := os.Stat(path); err != nil {
		t.left(from, "%v: every pull of Berth fails if the file that image.credentials names is missing", err)
		return
	}
	t.set(from, "image.credentials", path)
	t.logins = loginsOf(path)
}

// ownLogins reports credentials that CRI-O finds without a key.
func (t *crioConfig) ownLogins() {
	for _, path := range crioLogins {
		if found := loginsOf(path); len(found) > 0 {
			t.left("crio.image.global_auth_file, not given", "CRI-O takes credentials from %s: by hand: image.credentials is a "+
				"file that stays, with these credentials", path)
			t.logins = append(t.logins, found...)
		}
	}
}

// loginsOf are the hosts for which a file in Docker's format has credentials.
func loginsOf(path string) []string {
	var file struct {
		Auths   map[string]json.RawMessage `json:"auths"`
		Helpers map[string]string          `json:"credHelpers"`
	}
	data, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(data, &file) != nil {
		return nil
	}
	var out []string
	for _, name := range append(slices.Sorted(mapKeys(file.Auths)), slices.Sorted(mapKeys(file.Helpers))...) {
		if _, rest, ok := strings.Cut(name, "://"); ok {
			name = rest
		}
		host, _, _ := strings.Cut(name, "/")
		out = append(out, host)
	}
	return out
}

// loggedIn tells whether CRI-O has credentials for a host.
func (t *crioConfig) loggedIn(host string) bool {
	return slices.ContainsFunc(t.logins, func(name string) bool {
		return sameRegistry(host, name) || sameRegistry(name, host)
	})
}

// ofAnother reports credentials for a host that Berth asks for images of another registry.
func (t *crioConfig) ofAnother(from, host, prefix, file string) {
	if t.loggedIn(host) && !sameRegistry(host, prefix) {
		t.left(from, "CRI-O has credentials for %s, and Berth uses those only for images whose names begin with %s. "+
			"By hand: a header Authorization in its table in %s, or berth_credentials if it takes the credentials of %s", host,
			host, file, prefix)
	}
}
