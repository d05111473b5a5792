package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/errdefs"

	"berth/internal/tomlfile"
)

// hostsFile is the shape of hosts.toml: containerd's, and Berth's own berth_credentials, which containerd passes over.
// Where a file is not as the library wants it, the library leaves a part of it out, or all of it, and asks the registry
// itself. That is not what a node's owner meant, so the file is checked first.
type hostsFile struct {
	Server string `toml:"server"`
	hostEntry
	Host map[string]hostEntry `toml:"host"`
}

type hostEntry struct {
	Capabilities []string       `toml:"capabilities"`
	CA           any            `toml:"ca"`
	Client       any            `toml:"client"`
	SkipVerify   *bool          `toml:"skip_verify"`
	Header       map[string]any `toml:"header"`
	OverridePath bool           `toml:"override_path"`
	DialTimeout  string         `toml:"dial_timeout"`
	Credentials  string         `toml:"berth_credentials"`
}

// hostRule is what hosts.toml says of one host, besides what the library reads.
type hostRule struct {
	server bool    // it stands for the registry: server in hosts.toml, or the registry itself where there is none
	plain  bool    // it is asked over plain HTTP, or may be
	send   sending // berth_credentials; empty: not said
}

// maxHosts bounds a hosts.toml.
const maxHosts = 1 << 20

// hostRules are the rules of all hosts of a registry.
type hostRules struct {
	registry string
	file     string // empty: there is none
	mirrors  []mirrorRule
	server   mirrorRule
}

type mirrorRule struct {
	host string // host[:port]; empty, of the server: the registry itself
	hostRule
	header bool // the file has a header Authorization for it
}

// readHosts reads and checks the hosts.toml of a registry.
func readHosts(dir, registry string) (*hostRules, error) {
	rules := &hostRules{registry: registry, server: mirrorRule{hostRule: hostRule{server: true}}}
	if dir == "" {
		return rules, nil
	}
	fail := func(err error) (*hostRules, error) {
		return nil, fmt.Errorf("registry %s: %w: %w", registry, err, errdefs.ErrFailedPrecondition)
	}
	at, err := config.HostDirFromRoot(dir)(registry)
	if errdefs.IsNotFound(err) {
		return rules, nil
	}
	if err != nil {
		return fail(err)
	}
	file := filepath.Join(at, "hosts.toml")
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return rules, nil // certificates alone are fine
	case err != nil:
		return fail(err)
	case !info.Mode().IsRegular():
		return fail(fmt.Errorf("%s is no regular file", file))
	case info.Size() > maxHosts:
		return fail(fmt.Errorf("%s has %d bytes, over the limit of %d", file, info.Size(), maxHosts))
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return fail(err)
	}
	if len(data) == 0 {
		return rules, nil // to the library it is as good as none
	}
	rules.file = file
	if err := rules.parse(data); err != nil {
		return fail(err)
	}
	return rules, nil
}

// parse checks what the file says, and keeps it. An error names the file.
func (r *hostRules) parse(data []byte) error {
	var parsed hostsFile
	if err := tomlfile.Decode(data, &parsed); err != nil {
		return tomlfile.Located(err, r.file, nil)
	}
	if err := r.take(&parsed); err != nil {
		return fmt.Errorf("%s: %w", r.file, err)
	}
	return nil
}

func (r *hostRules) take(parsed *hostsFile) error {
	for key, entry := range parsed.Host {
		host, plain, err := hostURL(key)
		if err == nil {
			err = entry.check()
		}
		if err != nil {
			return fmt.Errorf("host.%q: %w", key, err)
		}
		r.mirrors = append(r.mirrors, mirrorRule{host, hostRule{plain: plain, send: sending(entry.Credentials)},
			entry.authorizes()})
	}
	if parsed.Server != "" {
		host, plain, err := hostURL(parsed.Server)
		if err != nil {
			return fmt.Errorf("server: %w", err)
		}
		r.server.host, r.server.plain = host, plain
	}
	r.server.send, r.server.header = sending(parsed.Credentials), parsed.authorizes()
	return parsed.check()
}

// hostName is a name or an address with, perhaps, a port. All else could be read in more than one way.
var hostName = regexp.MustCompile(
	`^(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?$`)

// hostURL reads the URL of a host as the library does, where that leaves no doubt.
func hostURL(text string) (host string, plain bool, err error) {
	full := text
	if !strings.HasPrefix(full, "http") {
		full = "https://" + full
	}
	u, err := url.Parse(full)
	if err != nil {
		return "", false, fmt.Errorf("%q is no URL of a host", text)
	}
	parts := hostName.FindStringSubmatch(u.Host)
	switch {
	case u.Scheme != "https" && u.Scheme != "http", parts == nil:
		return "", false, fmt.Errorf("%q is no URL of a host, such as https://mirror.example:5000", text)
	case u.User != nil:
		return "", false, errors.New("a URL with a user in it: credentials come with the pull, or are a header")
	case u.RawQuery != "" || u.Fragment != "" || u.Opaque != "":
		return "", false, fmt.Errorf("%q is more than the URL of a host with a path", text)
	}
	if port := parts[1]; port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return "", false, fmt.Errorf("%q has the port %s", text, port)
		}
	}
	return u.Host, u.Scheme == "http", nil
}

// authorizes tells whether a table has credentials of its own.
func (e *hostEntry) authorizes() bool {
	for name := range e.Header {
		if strings.EqualFold(name, "Authorization") {
			return true
		}
	}
	return false
}

// check refuses what the library would refuse, or pass over.
func (e *hostEntry) check() error {
	for _, c := range e.Capabilities {
		switch strings.ToLower(c) {
		case "pull", "resolve", "push", "referrers":
		default:
			return fmt.Errorf("unknown capability %q", c)
		}
	}
	switch sending(e.Credentials) {
	case "", sendNever, sendTLS, sendPlain:
	default:
		return fmt.Errorf("berth_credentials %q is none of never, tls, plain", e.Credentials)
	}
	if !isText(e.CA) && !isList(e.CA, isText) {
		return errors.New("ca is neither a path nor a list of paths")
	}
	pair := func(v any) bool {
		list, ok := v.([]any)
		return ok && len(list) == 2 && isList(v, isText)
	}
	if !isText(e.Client) && !isList(e.Client, func(v any) bool { return isText(v) || pair(v) }) {
		return errors.New("client is neither a path nor a list of paths, or of pairs of them")
	}
	for name, value := range e.Header {
		if !isText(value) && !isList(value, isText) {
			return fmt.Errorf("header %q is neither a text nor a list of them", name)
		}
	}
	if e.DialTimeout != "" {
		if _, err := time.ParseDuration(e.DialTimeout); err != nil {
			return fmt.Errorf("dial_timeout: %w", err)
		}
	}
	return nil
}

// isText is for a value that may be absent, too.
func isText(v any) bool {
	_, ok := v.(string)
	return ok || v == nil
}

func isList(v any, item func(any) bool) bool {
	list, ok := v.([]any)
	return ok && !slices.ContainsFunc(list, func(v any) bool { return !item(v) })
}

// of are the rules of the hosts that the library made of the file, in their order. The library must have made
// those that the file names, and no others.
func (r *hostRules) of(hosts []docker.RegistryHost) ([]hostRule, error) {
	fail := func(err error) ([]hostRule, error) {
		return nil, fmt.Errorf("registry %s: %s: %w: %w", r.registry, r.file, err, errdefs.ErrFailedPrecondition)
	}
	if len(hosts) == 0 {
		return fail(errors.New("no host"))
	}
	mirrors, last := hosts[:len(hosts)-1], hosts[len(hosts)-1]
	out := make([]hostRule, 0, len(hosts))
	seen := map[string]bool{}
	for _, h := range mirrors {
		rule, named := r.mirror(h.Host)
		if !named {
			return fail(fmt.Errorf("the host %q is not named", h.Host))
		}
		seen[h.Host] = true
		out = append(out, rule)
	}
	for _, m := range r.mirrors {
		if !seen[m.host] {
			return fail(fmt.Errorf("%s is not in a table of its own: write [host.\"https://%s\"]", m.host, m.host))
		}
	}
	server := r.server
	if server.host == "" {
		server.plain = last.Scheme == "http" || docker.IsLocalhost(last.Host)
		server.host = r.registry
		if r.registry == "docker.io" {
			server.host = last.Host
		}
	}
	if last.Host != server.host {
		return fail(fmt.Errorf("the server %q is asked in place of %q", last.Host, server.host))
	}
	return append(out, server.hostRule), nil
}

// names tells whether an address, host:port, is of a host that the file names.
func (r *hostRules) names(address string) bool {
	if r.file == "" {
		return false
	}
	named := []string{r.registry, r.server.host}
	for _, m := range r.mirrors {
		named = append(named, m.host)
	}
	host, port := splitHost(address)
	return slices.ContainsFunc(named, func(name string) bool {
		h, p := splitHost(name)
		return name != "" && h == host && (p == port || p == "" && (port == "443" || port == "80"))
	})
}

// mirror is the rule of a mirror. Of several tables for one host, with other paths, each must allow what is allowed.
func (r *hostRules) mirror(host string) (rule hostRule, named bool) {
	order := []sending{sendNever, "", sendTLS, sendPlain}
	for _, m := range r.mirrors {
		if m.host != host {
			continue
		}
		if !named {
			rule, named = m.hostRule, true
			continue
		}
		rule.plain = rule.plain || m.plain
		if slices.Index(order, m.send) < slices.Index(order, rule.send) {
			rule.send = m.send
		}
	}
	return rule, named
}
