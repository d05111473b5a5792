package v1

import (
	"path/filepath"
	"regexp"
	"strings"
	"unicode"

	"tags.cncf.io/container-device-interface/pkg/parser"
)

const (
	// maxName is the longest name that Kubernetes gives anything.
	maxName = 253
	// maxHostname is what the kernel takes (__NEW_UTS_LEN).
	maxHostname = 64
	// maxSubject is the largest user or group ID; the one above it means "none" to the kernel.
	maxSubject = 1<<32 - 2
)

var (
	hugepageSize   = regexp.MustCompile(`^[1-9][0-9]*[KMGTP]?B$`)
	cpuList        = regexp.MustCompile(`^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$`)
	sysctlName     = regexp.MustCompile(`^[A-Za-z0-9_-]+([./][A-Za-z0-9_:*-]+)+$`)
	capabilityName = regexp.MustCompile(`^(?i:[A-Z][A-Z0-9_]*)$`)
	unifiedName    = regexp.MustCompile(`^[a-z0-9_]+(\.[A-Za-z0-9_]+)+$`)
)

// name checks what becomes part of the names of things on the node. Kubernetes allows less; other clients use more.
func (c *check) name(p path, s string) {
	switch {
	case s == "":
		c.fail(p, "is required")
	case len(s) > maxName:
		c.fail(p, "is %d bytes long, %d are allowed", len(s), maxName)
	case s == "." || s == ".." || strings.ContainsFunc(s, func(r rune) bool {
		return r == '/' || unicode.IsControl(r) || unicode.IsSpace(r)
	}):
		c.fail(p, "%q is no name: spaces, control characters and / are not allowed", s)
	}
}

// word checks what is written into a line of a file, between spaces.
func (c *check) word(p path, s string) {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }) {
		c.fail(p, "%q is empty or has spaces or control characters in it", s)
	}
}

// hostname checks a host name as the kernel and /etc/hosts take it.
func (c *check) hostname(p path, s string) {
	if s == "" {
		return
	}
	if len(s) > maxHostname {
		c.fail(p, "is %d bytes long, %d are allowed", len(s), maxHostname)
	}
	c.word(p, s)
}

// absolute checks a path that is required. Dots in it are resolved by whoever opens it, inside its root.
func (c *check) absolute(p path, s string) {
	switch {
	case s == "":
		c.fail(p, "is required")
	case !filepath.IsAbs(s):
		c.fail(p, "%q is not an absolute path", s)
	}
}

// relative checks a path below some directory; empty is that directory, or nothing.
func (c *check) relative(p path, s string) {
	switch {
	case s == "":
	case filepath.IsAbs(s):
		c.fail(p, "%q is not a relative path", s)
	case hasDotDot(s):
		c.fail(p, "%q leaves its directory", s)
	}
}

func hasDotDot(s string) bool {
	for part := range strings.SplitSeq(s, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}

// keys checks the keys of labels and annotations.
func (c *check) keys(p path, m map[string]string) {
	if _, ok := m[""]; ok {
		c.fail(p, "has an empty key")
	}
}

// subject checks a user or group ID.
func (c *check) subject(p path, id int64) {
	if id < 0 || id > maxSubject {
		c.fail(p, "%d is not in 0..%d", id, int64(maxSubject))
	}
}

func (c *check) cdiDevice(p path, s string) {
	if _, _, _, err := parser.ParseQualifiedName(s); err != nil {
		c.fail(p, "%v", err)
	}
}
