package request

import (
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"
	"time"
	"unicode"

	"tags.cncf.io/container-device-interface/pkg/parser"

	"berth/internal/model"
)

const (
	// maxName is the longest name that Kubernetes gives anything.
	maxName = 253
	// maxHostname is what the kernel takes (__NEW_UTS_LEN).
	maxHostname = 64
)

var capabilityName = regexp.MustCompile(`^(?i:[A-Z][A-Z0-9_]*)$`)

// Name checks what becomes part of the names of things on the node. Kubernetes allows less; other clients use more.
func (c *Check) Name(p Path, s string) {
	switch {
	case s == "":
		c.Fail(p, "is required")
	case len(s) > maxName:
		c.Fail(p, "is %d bytes long, %d are allowed", len(s), maxName)
	case s == "." || s == ".." || strings.ContainsFunc(s, func(r rune) bool {
		return r == '/' || unicode.IsControl(r) || unicode.IsSpace(r)
	}):
		c.Fail(p, "%q is not a valid name: spaces, control characters and / are not allowed", s)
	}
}

// Word checks what is written into a line of a file, between spaces.
func (c *Check) Word(p Path, s string) {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }) {
		c.Fail(p, "%q is empty or has spaces or control characters in it", s)
	}
}

// Hostname checks a host name as the kernel and /etc/hosts take it.
func (c *Check) Hostname(p Path, s string) {
	if s == "" {
		return
	}
	if len(s) > maxHostname {
		c.Fail(p, "is %d bytes long, %d are allowed", len(s), maxHostname)
	}
	c.Word(p, s)
}

// Absolute checks a path that is required. Dots in it are resolved by whoever opens it, inside its root.
func (c *Check) Absolute(p Path, s string) {
	switch {
	case s == "":
		c.Fail(p, "is required")
	case !filepath.IsAbs(s):
		c.Fail(p, "%q is not an absolute path", s)
	}
}

// Relative checks a path below some directory, and says whether it is one; empty is that directory, or nothing.
func (c *Check) Relative(p Path, s string) bool {
	switch {
	case s == "":
	case filepath.IsAbs(s):
		c.Fail(p, "%q is not a relative path", s)
		return false
	case hasDotDot(s):
		c.Fail(p, "%q leaves its directory", s)
		return false
	}
	return true
}

// LogDirectory checks the directory of a pod's logs; empty: it has none.
func (c *Check) LogDirectory(p Path, s string) {
	if s == "" {
		return
	}
	c.Absolute(p, s)
	c.Inside(p, s)
}

// Inside checks a path that no part of leads up.
func (c *Check) Inside(p Path, s string) {
	if hasDotDot(s) {
		c.Fail(p, "%q has .. in it", s)
	}
}

// hasDotDot tells whether a path has a part that leads up.
func hasDotDot(s string) bool {
	for part := range strings.SplitSeq(s, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}

// Keys checks the keys of labels and annotations.
func (c *Check) Keys(p Path, m map[string]string) {
	if _, ok := m[""]; ok {
		c.Fail(p, "has an empty key")
	}
}

// Subject checks a user or group ID.
func (c *Check) Subject(p Path, id int64) {
	if id < 0 || id > model.MaxID {
		c.Fail(p, "%d is not in 0..%d", id, model.MaxID)
	}
}

// Env checks the name of a variable of the environment.
func (c *Check) Env(p Path, key string) {
	if key == "" || strings.Contains(key, "=") {
		c.Fail(p, "%q is empty or has = in it", key)
	}
}

// MountTarget checks the path in a container at which something is mounted.
func (c *Check) MountTarget(p Path, path string) {
	c.Absolute(p, path)
	if filepath.Clean(path) == "/" {
		c.Fail(p, "%q is the root file system", path)
	}
}

// DNS checks the name servers of a pod and the domains that it searches, and returns the latter without empty ones:
// kubelets 1.17 to 1.24 send one where the node's resolv.conf has "search .".
func (c *Check) DNS(p Path, d interface {
	GetServers() []string
	GetSearches() []string
}) (searches []string) {
	for i, s := range d.GetServers() {
		if _, err := netip.ParseAddr(s); err != nil { // a link-local server has a zone
			c.Fail(p.Field("servers").At(i), "%q is not an IP address", s)
		}
	}
	for i, s := range d.GetSearches() {
		if s == "" {
			continue
		}
		c.Word(p.Field("searches").At(i), s)
		searches = append(searches, s)
	}
	return searches
}

// CDIDevice checks the qualified name of a device.
func (c *Check) CDIDevice(p Path, s string) {
	if _, _, _, err := parser.ParseQualifiedName(s); err != nil {
		c.Fail(p, "%v", err)
	}
}

// Port checks a port number that is required.
func (c *Check) Port(p Path, port int32) {
	if port < 1 || port > 65535 {
		c.Fail(p, "%d is not in 1..65535", port)
	}
}

// PortMapping checks a port of a pod and the one of the node that leads there, if any does.
func (c *Check) PortMapping(p Path, m interface {
	GetContainerPort() int32
	GetHostPort() int32
	GetHostIp() string
}) {
	c.Port(p.Field("container_port"), m.GetContainerPort())
	if m.GetHostPort() != 0 {
		c.Port(p.Field("host_port"), m.GetHostPort())
	}
	if ip := m.GetHostIp(); ip != "" {
		c.Address(p.Field("host_ip"), ip)
	}
}

// Address checks an IP address without a zone.
func (c *Check) Address(p Path, s string) {
	if addr, err := netip.ParseAddr(s); err != nil || addr.Zone() != "" {
		c.Fail(p, "%q is not an IP address", s)
	}
}

// Capabilities checks names of capabilities, with and without CAP_.
func (c *Check) Capabilities(p Path, names []string) {
	for i, name := range names {
		if !capabilityName.MatchString(name) {
			c.Fail(p.At(i), "%q is not the name of a capability", name)
		}
	}
}

// Command checks a command that is required.
func (c *Check) Command(p Path, cmd []string) {
	if len(cmd) == 0 {
		c.Fail(p, "is required")
	} else if cmd[0] == "" {
		c.Fail(p.At(0), "is empty")
	}
}

// Within checks a number that is 0, which is unset, or in a range.
func (c *Check) Within(p Path, v, low, high int64) {
	if v != 0 && (v < low || v > high) {
		c.Fail(p, "%d is not in %d..%d", v, low, high)
	}
}

// longest is 100 years: longer than anything on a node lasts, and short enough that a Duration has room for a few of
// them together, and for one of them after the time of day in nanoseconds.
const longest = 100 * 365 * 24 * time.Hour

// Seconds translates a number of seconds. More than 100 years are 100 years.
func (c *Check) Seconds(p Path, seconds int64) time.Duration {
	if seconds < 0 {
		c.Fail(p, "%d is negative", seconds)
		return 0
	}
	return time.Duration(min(seconds, int64(longest/time.Second))) * time.Second
}
