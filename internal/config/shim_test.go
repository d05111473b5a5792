package config

import (
	"path/filepath"
	"testing"

	runc "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"google.golang.org/protobuf/proto"
)

func TestAShimIsFoundByItsName(t *testing.T) {
	for name, want := range map[string]string{
		"io.containerd.kata.v2":       "containerd-shim-kata-v2",
		"io.containerd.runsc.v1":      "containerd-shim-runsc-v1",
		"io.containerd.kata-qemu.v2":  "containerd-shim-kata-qemu-v2",
		"example.com.io.spin.v2":      "containerd-shim-spin-v2",
		"kata":                        "",
		"kata.v2":                     "",
		"io..v2":                      "",
		"/usr/bin/containerd.shim.v2": "",
	} {
		if got := ShimBinary(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	r := Runtime{RuntimeType: "io.containerd.not-there.v9"}
	if got := r.ShimPath(); got != "/usr/local/bin/containerd-shim-not-there-v9" || r.ShimMissing() == "" {
		t.Errorf("%s, %q", got, r.ShimMissing())
	}
	r.Path = filepath.Join(t.TempDir(), "shim")
	if r.ShimPath() != r.Path || r.ShimMissing() == "" {
		t.Errorf("%s, %q", r.ShimPath(), r.ShimMissing())
	}
}

func TestOptionsOfAShimAreWhatContainerdSends(t *testing.T) {
	options := func(r Runtime, into proto.Message) {
		t.Helper()
		name, message, err := r.ShimOptions(true)
		if err != nil || name != string(into.ProtoReflect().Descriptor().FullName()) {
			t.Fatalf("%q, %v", name, err)
		}
		if err := proto.Unmarshal(message, into); err != nil {
			t.Fatal(err)
		}
	}
	var o runc.Options
	options(Runtime{RuntimeType: "io.containerd.runc.v2", Options: map[string]any{
		"BinaryName": "/usr/bin/crun", "Root": "/run/crun", "NoPivotRoot": true, "IoUid": int64(7),
	}}, &o)
	if o.BinaryName != "/usr/bin/crun" || o.Root != "/run/crun" || !o.NoPivotRoot || o.IoUid != 7 || !o.SystemdCgroup {
		t.Errorf("%v", &o)
	}
	kata := Runtime{RuntimeType: "io.containerd.kata.v2", Options: map[string]any{"ConfigPath": "/etc/kata.toml"}}
	var g runtimeoptions.Options
	options(kata, &g)
	if g.ConfigPath != "/etc/kata.toml" || len(g.ConfigBody) > 0 {
		t.Errorf("%v", &g)
	}
	kata.Options = map[string]any{"Own": "x"}
	options(kata, &g)
	if g.ConfigPath != "" || string(g.ConfigBody) != "Own = 'x'\n" {
		t.Errorf("%v", &g)
	}
	kata.Options = nil
	if name, message, err := kata.ShimOptions(true); name != "" || message != nil || err != nil {
		t.Errorf("a shim without options gets %q, %q, %v", name, message, err)
	}
}
