package annotation

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// never are annotations that no handler passes on: bundle is where runc keeps what it has of a container,
// and the others become properties of the container's systemd unit, which can name programs that systemd runs as root.
var never = []string{"bundle", "org.systemd.property."}

// interpreted are annotations that tell a runtime, or what it runs containers in, what to do as root:
// which files to write, which libraries to load, which programs to start. Those of runc and crun are the ones
// that their `features` command calls potentiallyUnsafeConfigAnnotations. They are passed on where a handler names them
// in full, and by no pattern. One that ends with a dot or a slash is a prefix.
var interpreted = []string{
	"org.criu.",                         // runc: a file of settings for CRIU
	"run.oci.", "module.wasm.", "krun.", // crun
	"io.kubernetes.cri.", "io.kubernetes.cri-o.", // crun, Kata Containers and gVisor: what kind of container it is
	"io.katacontainers.",            // Kata Containers: its configuration, its file and the path of its hypervisor
	cdiPrefix, "nvidia.cdi.k8s.io/", // NVIDIA's runtime: devices
	"dev.gvisor.",                                      // gVisor: flags of runsc
	"io.containerd.", "aws.firecracker.", "com.urunc.", // shims and virtual machines
}

// A pattern that begins with kata passes the annotations below kataSettings on, too: Kata's documents have operators
// write such a pattern. Kata's own configuration has a list of the settings of the hypervisor that a pod may change
// (enable_annotations), which are those that name files and programs of the node. Kata checks no other annotation:
// config_path is the path of the whole configuration, so it needs its full name.
const (
	kata         = "io.katacontainers."
	kataSettings = kata + "config."
)

// cdiPrefix begins annotations that name devices of CDI.
const cdiPrefix = "cdi.k8s.io/"

func among(list []string, key string) bool {
	return slices.ContainsFunc(list, func(entry string) bool {
		return key == entry || strings.ContainsAny(entry[len(entry)-1:], "./") && strings.HasPrefix(key, entry)
	})
}

// CheckPattern says what is wrong with a name or a pattern of annotations that a handler passes on.
// Patterns are those of path.Match; an asterisk at the end stands for the rest, slashes included.
func CheckPattern(pattern string) error {
	if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
		return fmt.Errorf("%q is no pattern", pattern)
	}
	if among(never, pattern) {
		return fmt.Errorf("%q is never passed on: it changes what the runtime or systemd does as root", pattern)
	}
	return nil
}

// Passed tells whether an annotation is passed on to the runtime of a handler with these names and patterns.
// reason is why not, of one that a pattern matches.
func Passed(patterns []string, key string) (passed bool, reason string) {
	if !slices.ContainsFunc(patterns, func(pattern string) bool { return matches(pattern, key) }) {
		return false, ""
	}
	switch {
	case among(never, key):
		return false, "it changes what the runtime or systemd does as root, and is never passed on"
	case among(interpreted, key) && !slices.Contains(patterns, key) && !settingOfKata(patterns, key):
		return false, "it changes what the runtime does as root, " +
			"and is passed on only where the handler's annotations name it in full"
	}
	return true, ""
}

func settingOfKata(patterns []string, key string) bool {
	return strings.HasPrefix(key, kataSettings) && slices.ContainsFunc(patterns, func(pattern string) bool {
		return strings.HasPrefix(fixedPart(pattern), kata) && matches(pattern, key)
	})
}

// fixedPart is the part of a pattern before its first wildcard.
func fixedPart(pattern string) string {
	if i := strings.IndexAny(pattern, `*?[\`); i >= 0 {
		return pattern[:i]
	}
	return pattern
}

// Withheld says which annotations a pattern matches and does not pass on, as beginnings of their names. It is empty for
// a full name, and for a pattern of which nothing is withheld, or little: Kata's settings are passed on.
func Withheld(pattern string) []string {
	fixed := fixedPart(pattern)
	if fixed == pattern {
		return nil
	}
	var out []string
	for _, prefix := range interpreted {
		if prefix == kata && strings.HasPrefix(fixed, kata) {
			continue
		}
		if strings.HasPrefix(fixed, prefix) || matches(pattern, prefix+"x") {
			out = append(out, prefix)
		}
	}
	return out
}

// Devices tells whether a name or a pattern is of annotations with devices of CDI, which berthd itself reads.
func Devices(pattern string) bool { return strings.HasPrefix(fixedPart(pattern), cdiPrefix) }

// CheckBrought says whether an annotation that a device plugin brings may be passed on. Its author is root on the node;
// but no device is a property of a unit.
func CheckBrought(key string) error {
	if among(never, key) {
		return fmt.Errorf("annotation %s changes what the runtime or systemd does as root, and is never passed on", key)
	}
	return nil
}

func matches(pattern, key string) bool {
	if ok, _ := path.Match(pattern, key); ok {
		return true
	}
	// path.Match keeps * within a slash, and annotations have one.
	prefix, ok := strings.CutSuffix(pattern, "*")
	return ok && strings.HasPrefix(key, prefix)
}
