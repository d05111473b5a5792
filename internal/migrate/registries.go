package migrate

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"berth/internal/image/registry"
)

// kubeletLogins is where a kubelet looks for the credentials of the node, in Docker's format, which it sends
// with each pull.
const kubeletLogins = "/var/lib/kubelet/config.json"

// registries are the settings of containerd's table registry. Mirrors, configs and auths are those of its versions
// before 2.
type registries struct {
	from string // the table's key, as it is printed
	path string // config_path
	// byDefault says that path is containerd's default, and not given.
	byDefault bool
	mirrors   map[string][]string
	tls       map[string]map[string]any
	auths     map[string]login // by host
	headers   map[string]any
}

// login is what a registry is told.
type login struct{ user, password, token string }

func (r *registries) read(from string, settings map[string]any) {
	r.from = from
	for key, value := range settings {
		switch key {
		case "config_path":
			r.path = text(value)
		case "mirrors":
			for host, mirror := range table(value) {
				if r.mirrors == nil {
					r.mirrors = map[string][]string{}
				}
				r.mirrors[host] = texts(table(mirror)["endpoint"])
			}
		case "configs":
			for host, config := range table(value) {
				if tls := table(table(config)["tls"]); len(tls) > 0 {
					if r.tls == nil {
						r.tls = map[string]map[string]any{}
					}
					r.tls[host] = tls
				}
				if auth := table(table(config)["auth"]); len(auth) > 0 {
					r.login(host, auth)
				}
			}
		case "auths":
			for host, auth := range table(value) {
				r.login(host, table(auth))
			}
		case "headers":
			r.headers = table(value)
		}
	}
}

func (r *registries) login(host string, auth map[string]any) {
	if u, err := url.Parse(host); err == nil && u.Scheme != "" && u.Host != "" {
		host = u.Host
	}
	l := login{user: text(auth["username"]), password: text(auth["password"]), token: text(auth["identitytoken"])}
	// containerd reads the three forms in this order, and takes the first that is given.
	if packed := text(auth["auth"]); packed != "" && l.user == "" && l.token == "" {
		if plain, err := base64.StdEncoding.DecodeString(packed); err == nil {
			l.user, l.password, _ = strings.Cut(strings.TrimRight(string(plain), "\x00"), ":")
		}
	}
	if r.auths == nil {
		r.auths = map[string]login{}
	}
	r.auths[host] = l
}

// old is whether there are settings of the time before hosts.toml.
func (r *registries) old() bool { return len(r.mirrors)+len(r.tls)+len(r.auths)+len(r.headers) > 0 }

// key is a key of the table with all of its names.
func (r *registries) key(names ...string) string {
	if r.from == "" {
		return "registry." + dotted(names...)
	}
	return r.from + "." + dotted(names...)
}

func mapKeys[V any](m map[string]V) iter.Seq[string] { return maps.Keys(m) }

// write puts the registries into a plan.
func (r *registries) write(p *Plan) error {
	if r.path != "" {
		return r.keepHosts(p)
	}
	if !r.old() {
		return nil
	}
	dir := filepath.Join(p.dir, "certs.d")
	p.set(r.from, "hosts_dir", dir)
	hosts := slices.Sorted(mapKeys(r.mirrors))
	for host := range r.tls {
		if !slices.Contains(hosts, host) && !r.endpoint(host) {
			hosts = append(hosts, host)
		}
	}
	if _, ok := r.mirrors["*"]; !ok && len(r.headers) > 0 {
		hosts = append(hosts, "*")
	}
	slices.Sort(hosts)
	for _, host := range hosts {
		if err := r.hosts(p, dir, host); err != nil {
			return err
		}
	}
	withheld, err := withheldIn(p.Files, dir)
	if err != nil {
		return err
	}
	p.unsent(dir, withheld)
	return r.credentials(p)
}

// keepHosts has Berth read the directories of hosts.toml files that containerd reads. containerd uses credentials of
// its configuration with them all the same, since hosts.toml has none.
func (r *registries) keepHosts(p *Plan) error {
	from := r.key("config_path")
	if r.byDefault {
		from += " (not given: the default of containerd 2)"
	}
	dirs := strings.FieldsFunc(r.path, func(c rune) bool { return c == ':' })
	if len(dirs) == 0 {
		p.left(from, "%q names no directory", r.path)
		return r.credentials(p)
	}
	at := dirs[0]
	for _, dir := range dirs {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			at = dir
			break
		}
	}
	p.set(from, "hosts_dir", at)
	for _, dir := range dirs {
		if info, err := os.Stat(dir); dir != at && err == nil && info.IsDir() {
			p.left(from, "hosts_dir is one directory: move what is in %s to %s", dir, at)
		}
	}
	if len(r.mirrors)+len(r.tls) > 0 {
		p.left(r.from, "mirrors and configs.*.tls have no effect where config_path is set")
		r.mirrors, r.tls = nil, nil
	}
	if len(r.headers) > 0 {
		p.left(r.key("headers"), "containerd sends these headers to every registry: by hand: header in each hosts.toml in %s",
			at)
	}
	hosts := registry.WithheldHosts(at)
	r.mirrorsOf(p, at, hosts)
	p.unsent(at, hosts)
	return r.credentials(p)
}

// endpoint is whether a host is a mirror of another registry.
func (r *registries) endpoint(host string) bool {
	for name, urls := range r.mirrors {
		for _, u := range urls {
			if e, err := url.Parse(u); err == nil && e.Host == host && name != host {
				return true
			}
		}
	}
	return false
}

// hosts makes the hosts.toml of one registry. * are all that have none.
func (r *registries) hosts(p *Plan, dir, domain string) error {
	name, from := domain, r.key("mirrors", domain)
	if domain == "*" {
		name = "_default"
	}
	if strings.ContainsRune(name, '/') || strings.HasPrefix(name, ".") {
		p.left(from, "%q is no name of a registry", domain)
		return nil
	}
	urls := r.mirrors[domain]
	if len(urls) == 0 && r.tls[domain] != nil {
		urls = []string{"https://" + domain}
	}
	var out hostsToml
	if len(r.headers) > 0 {
		out.top = map[string]any{"header": r.headers}
	}
	plain := r.plain(domain, urls)
	for _, text := range urls {
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			p.left(from, "the endpoint %q is no URL such as https://mirror.example", text)
			continue
		}
		entry := map[string]any{"capabilities": []string{"pull", "resolve"}}
		if strings.Trim(u.Path, "/") != "" {
			entry["override_path"] = true
		}
		if slices.Contains(plain, u.Host) {
			entry["berth_credentials"] = "plain"
		}
		r.trust(p, u.Host, entry)
		header := maps.Clone(r.headers)
		if l := r.auths[u.Host]; !sameRegistry(u.Host, domain) && l.user != "" {
			if header == nil {
				header = map[string]any{}
			}
			header["Authorization"] = "Basic " + base64.StdEncoding.EncodeToString([]byte(l.user+":"+l.password))
			out.secret = true
			p.left(r.key("configs", u.Host, "auth"), "they become a fixed header Authorization in %s. A registry that gives "+
				"out tokens does not take it. By hand, for such a mirror: berth_credentials in its table, if it takes the "+
				"credentials of %s", filepath.Join(dir, name, "hosts.toml"), domain)
		}
		if len(header) > 0 {
			entry["header"] = header
		}
		out.add(strings.TrimSuffix(text, "/"), entry)
	}
	file, err := out.file(filepath.Join(dir, name, "hosts.toml"))
	if err != nil {
		return err
	}
	p.Files = append(p.Files, file)
	p.note(from, Translated, file.Path)
	return nil
}

// trust says which certificates a host has to have, or shows.
func (r *registries) trust(p *Plan, host string, entry map[string]any) {
	for _, key := range keys(r.tls[host]) {
		value := r.tls[host][key]
		switch key {
		case "insecure_skip_verify":
			if on, _ := value.(bool); on {
				entry["skip_verify"] = true
			}
		case "ca_file":
			if !empty(value) {
				entry["ca"] = value
			}
		case "cert_file":
			if !empty(value) {
				entry["client"] = [][]string{{text(value), text(r.tls[host]["key_file"])}}
			}
		case "key_file":
		default:
			p.left(r.key("configs", host, "tls", key), "Berth does not know this key")
		}
	}
}

// credentials gives the kubelet those that containerd had for the node: Berth's pulls have what a kubelet sends.
func (r *registries) credentials(p *Plan) error {
	type auth struct {
		Auth string `json:"auth"`
	}
	auths := map[string]auth{}
	for _, host := range slices.Sorted(mapKeys(r.auths)) {
		l, from := r.auths[host], r.key("configs", host, "auth")
		switch {
		case l.user == "" && l.token != "":
			p.left(from, "an identity token: a kubelet sends users and passwords only; give it a credential provider")
			continue
		case l.user == "":
			p.left(from, "it has no user and password that can be read")
			continue
		}
		name := host
		if host == "docker.io" || host == "registry-1.docker.io" {
			name = "https://index.docker.io/v1/"
		}
		auths[name] = auth{base64.StdEncoding.EncodeToString([]byte(l.user + ":" + l.password))}
		p.note(from, Translated, "credentials for the kubelet, which sends them with each pull")
	}
	if len(auths) == 0 {
		return nil
	}
	data, err := json.MarshalIndent(map[string]any{"auths": auths}, "", "  ")
	if err != nil {
		return err
	}
	path := p.kubelet()
	if old, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(old)) != string(data) {
		p.left(path, "there are credentials already: those of containerd are in %s, to be added by hand", p.credentialsFile())
		path = p.credentialsFile()
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	p.Files = append(p.Files, File{Path: path, Mode: 0o600, Data: append(data, '\n')})
	return nil
}

func (p *Plan) credentialsFile() string { return filepath.Join(p.dir, "migrate", "credentials.json") }

// kubelet is the file of the kubelet's credentials for a node; for a configuration that is elsewhere, in a test or an
// image that is built, it lies beside that.
func (p *Plan) kubelet() string {
	if filepath.Clean(p.dir) == DefaultDir {
		return kubeletLogins
	}
	return p.credentialsFile()
}

// hostsToml is a file of a registry, with hosts in their order, which a map would not keep.
type hostsToml struct {
	top    map[string]any
	hosts  []string
	tables []map[string]any
	secret bool
}

func (h *hostsToml) add(url string, entry map[string]any) {
	if i := slices.Index(h.hosts, url); i >= 0 {
		h.tables[i] = entry
		return
	}
	h.hosts, h.tables = append(h.hosts, url), append(h.tables, entry)
}

func (h *hostsToml) file(path string) (File, error) {
	var out strings.Builder
	encode := func(v any) error {
		e := toml.NewEncoder(&out)
		e.SetTablesInline(false)
		return e.Encode(v)
	}
	if len(h.top) > 0 {
		if err := encode(h.top); err != nil {
			return File{}, err
		}
	}
	for i, host := range h.hosts {
		before := out.Len()
		if err := encode(map[string]any{"host": map[string]any{host: h.tables[i]}}); err != nil {
			return File{}, fmt.Errorf("%s: %w", path, err)
		}
		// Each table of a host would come with a table [host], which a file may have only once, and does not need.
		text := out.String()
		out.Reset()
		out.WriteString(text[:before] + strings.TrimPrefix(text[before:], "[host]\n"))
	}
	mode := fs.FileMode(0o644)
	if h.secret {
		mode = 0o600
	}
	return File{Path: path, Mode: mode, Data: []byte(out.String())}, nil
}
