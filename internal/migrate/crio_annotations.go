package migrate

import (
	"slices"
	"strings"
)

// ofCRIO is what takes the place of an annotation on which CRI-O itself acts.
type ofCRIO struct {
	old     string // the name before NAME.crio.io; empty: there was none
	instead string
}

const (
	nothingInstead  = "Berth has nothing of the kind"
	highPerformance = "Berth has none of the settings for high performance"
)

// crioAnnotations are the annotations on which CRI-O 1.36 itself acts, without .crio.io.
var crioAnnotations = map[string]ofCRIO{
	"cgroup2-mount-hierarchy-rw": {"io.kubernetes.cri-o.cgroup2-mount-hierarchy-rw",
		"by hand: cgroup_writable = true of the " +
			"handler, for all of its containers"},
	"devices": {"io.kubernetes.cri-o.Devices",
		"by hand: default_devices of the handler, for all of its containers, or a " +
			"device plugin (berth device-plugin) for pods that ask"},
	"disable-fips":        {"io.kubernetes.cri-o.DisableFIPS", nothingInstead},
	"link-logs":           {"io.kubernetes.cri-o.LinkLogs", nothingInstead},
	"pod-linux-overhead":  {"io.kubernetes.cri-o.PodLinuxOverhead", nothingInstead},
	"pod-linux-resources": {"io.kubernetes.cri-o.PodLinuxResources", nothingInstead},
	"platform-runtime-path": {"io.kubernetes.cri-o.PlatformRuntimePath", "by hand: a handler for each runtime, with its " +
		"path"},
	"seccomp-notifier-action": {"io.kubernetes.cri-o.seccompNotifierAction", nothingInstead},
	"seccomp-profile":         {"seccomp-profile.kubernetes.cri-o.io", "pods say securityContext.seccompProfile"},
	"shm-size": {"io.kubernetes.cri-o.ShmSize",
		"by hand: shm_size of the handler, for all of its pods; or pods mount an " +
			"emptyDir with medium Memory at /dev/shm"},
	"skip-gomaxprocs":               {"", "Berth sets GOMAXPROCS in no container"},
	"spoofed":                       {"io.kubernetes.cri-o.Spoofed", nothingInstead},
	"try-skip-volume-selinux-label": {"io.kubernetes.cri-o.TrySkipVolumeSELinuxLabel", nothingInstead},
	"umask":                         {"io.kubernetes.cri-o.umask", nothingInstead},
	"unified-cgroup":                {"io.kubernetes.cri-o.UnifiedCgroup", nothingInstead},
	"userns-mode":                   {"io.kubernetes.cri-o.userns-mode", "pods say hostUsers: false"},
	"cpu-load-balancing":            {"", highPerformance},
	"cpu-quota":                     {"", highPerformance},
	"cpu-c-states":                  {"", highPerformance},
	"cpu-freq-governor":             {"", highPerformance},
	"cpu-shared":                    {"", highPerformance},
	"irq-load-balancing":            {"", highPerformance},
}

// crioSuffix ends the newer names of annotations on which CRI-O acts.
const crioSuffix = ".crio.io"

// allowed translates the annotations that a handler lets pods use. Those on which CRI-O itself acts mean nothing to an
// OCI runtime; the others are for it.
func (t *crioConfig) allowed(from, handler string, names []string) {
	var passed []string
	for _, name := range names {
		if acts, instead := actedOn(name); acts {
			t.left(from, "%q: CRI-O itself acts on this annotation, and Berth does not: %s", name, instead)
			continue
		}
		// CRI-O allows all annotations that begin with one of these names.
		if strings.HasSuffix(name, ".") {
			name += "*"
		}
		passed = append(passed, name)
	}
	t.annotations(from, handler, passed)
}

// actedOn tells whether CRI-O itself acts on an annotation, and what takes its place. The name of a container may
// follow the annotation's own.
func actedOn(name string) (acts bool, instead string) {
	is := func(known string) bool {
		rest, ok := strings.CutPrefix(name, known)
		return ok && known != "" && (rest == "" || strings.ContainsAny(rest[:1], "./"))
	}
	for _, key := range slices.Sorted(mapKeys(crioAnnotations)) {
		if a := crioAnnotations[key]; is(key+crioSuffix) || is(a.old) {
			return true, a.instead
		}
	}
	if name == "io.kubernetes.cri.rdt-class" {
		return true, "annotations name no classes of RDT; NRI plugins do"
	}
	base, _, _ := strings.Cut(name, "/")
	return strings.HasSuffix(base, crioSuffix) || strings.HasPrefix(name, "io.kubernetes.cri-o."), nothingInstead
}
