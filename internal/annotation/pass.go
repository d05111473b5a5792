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
	"io.katacontainers.",                // Kata Containers: its configuration and the path of its hypervisor
	"cdi.k8s.io/", "nvidia.cdi.k8s.io/", // NVIDIA's runtime: devices
	"dev.gvisor.",                                      // gVisor: flags of runsc
	"io.containerd.", "aws.firecracker.", "com.urunc.", // shims and virtual machines
}

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
	case among(interpreted, key) && !slices.Contains(patterns, key):
		return false, "it changes what the runtime does as root, " +
			"and is passed on only where the handler's annotations name it in full"
	}
	return true, ""
}

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
