package annotation

import (
	"slices"
	"testing"
)

// TestSettingsOfKataPassByAPatternThatNamesKata, and by no other pattern; Kata has its own list of those that a pod may
// set. Annotations of other runtimes pass by their full names only, and so do those of Kata that are not on its list.
func TestSettingsOfKataPassByAPatternThatNamesKata(t *testing.T) {
	const (
		setting = "io.katacontainers.config.hypervisor.default_vcpus"
		file    = "io.katacontainers.config_path"
	)
	for _, c := range []struct {
		pattern, key string
		want         bool
	}{
		{"io.katacontainers.*", setting, true},
		{"io.katacontainers.config.*", setting, true},
		{"io.katacontainers.config.hypervisor.default_vcpu[s]", setting, true},
		{setting, setting, true},
		{"*", setting, false},
		{"io.*", setting, false},
		{"io.katacontainer*", setting, false},
		{"io.katacontainers.config.agent.*", setting, false},
		{"io.katacontainers.*", file, false},
		{file, file, true},
		{"io.katacontainers.*", "io.katacontainers.pkg.oci.bundle_path", false},
		{"dev.gvisor.*", "dev.gvisor.flag.platform", false},
		{"cdi.k8s.io/*", "cdi.k8s.io/gpu", false},
		{"run.oci.*", "run.oci.handler", false},
		{"org.systemd.property.*", "org.systemd.property.ExecStartPre", false},
	} {
		if passed, _ := Passed([]string{c.pattern}, c.key); passed != c.want {
			t.Errorf("%s passes %s on: %t, want %t", c.pattern, c.key, passed, c.want)
		}
	}
}

func TestAPatternSaysWhatItWithholds(t *testing.T) {
	for pattern, want := range map[string][]string{
		"example.com/*": nil, "io.katacontainers.*": nil, "run.oci.handler": nil, "run.oci.*": {"run.oci."},
		"dev.gvisor.flag.*": {"dev.gvisor."}, "cdi.k8s.io/*": {"cdi.k8s.io/"},
		"io.*": {"io.kubernetes.cri.", "io.kubernetes.cri-o.", "io.katacontainers.", "io.containerd."},
		"*":    interpreted,
	} {
		if got := Withheld(pattern); !slices.Equal(got, want) {
			t.Errorf("%s withholds %q, want %q", pattern, got, want)
		}
	}
}
