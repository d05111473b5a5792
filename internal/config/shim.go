package config

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	runc "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/pelletier/go-toml/v2"
	"google.golang.org/protobuf/proto"
)

// shimDir is where a shim is taken to be that is not in PATH: it may be installed there while berthd runs.
const shimDir = "/usr/local/bin"

// ShimBinary is the name of the program of a shim, made from its runtime_type as containerd does: that of
// io.containerd.kata.v2 is containerd-shim-kata-v2. It is empty for a text that is no such name.
func ShimBinary(runtimeType string) string {
	parts := strings.Split(runtimeType, ".")
	if len(parts) < 3 || slices.Contains(parts, "") || strings.ContainsRune(runtimeType, filepath.Separator) {
		return ""
	}
	return "containerd-shim-" + parts[len(parts)-2] + "-" + parts[len(parts)-1]
}

// ShimPath is the shim's binary, absolute.
func (r *Runtime) ShimPath() string {
	if r.Path != "" {
		return r.Path
	}
	name := ShimBinary(r.RuntimeType)
	if path, err := exec.LookPath(name); err == nil {
		if path, err = filepath.Abs(path); err == nil {
			return path
		}
	}
	return filepath.Join(shimDir, name)
}

// RuncShim tells whether the shim is that of runc, whose options are messages of another type.
func (r *Runtime) RuncShim() bool {
	return cmp.Or(ShimBinary(r.RuntimeType), filepath.Base(r.Path)) == "containerd-shim-runc-v2"
}

// RuncBinary is the OCI runtime that runc's shim calls.
func (r *Runtime) RuncBinary() string {
	name, _ := r.Options["BinaryName"].(string)
	return cmp.Or(name, "runc")
}

// ShimOptions are the options that the shim is given, as a protobuf Any: the name of the message's type, and the
// message. Both are empty if there are none. systemd is the cgroup driver.
func (r *Runtime) ShimOptions(systemd bool) (name string, message []byte, err error) {
	var options proto.Message
	switch {
	case r.RuncShim():
		if options, err = r.runcOptions(systemd); err != nil {
			return "", nil, err
		}
	case len(r.Options) == 0:
		return "", nil, nil
	default:
		o := &runtimeoptions.Options{}
		for key, to := range map[string]*string{"TypeUrl": &o.TypeUrl, "ConfigPath": &o.ConfigPath} {
			value, ok := r.Options[key].(string)
			if _, there := r.Options[key]; there && !ok {
				return "", nil, fmt.Errorf("%s is no string in quotes", key)
			}
			*to = value
		}
		if o.ConfigPath == "" { // the shim reads the table itself
			if o.ConfigBody, err = toml.Marshal(r.Options); err != nil {
				return "", nil, err
			}
		}
		options = o
	}
	message, err = proto.MarshalOptions{Deterministic: true}.Marshal(options)
	return string(options.ProtoReflect().Descriptor().FullName()), message, err
}

// runcOptions are those of runc's shim, by the names that containerd's configuration has for them.
func (r *Runtime) runcOptions(systemd bool) (*runc.Options, error) {
	o := &runc.Options{SystemdCgroup: systemd}
	texts := map[string]*string{"BinaryName": &o.BinaryName, "Root": &o.Root, "ShimCgroup": &o.ShimCgroup,
		"CriuImagePath": &o.CriuImagePath, "CriuWorkPath": &o.CriuWorkPath}
	flags := map[string]*bool{"NoPivotRoot": &o.NoPivotRoot, "NoNewKeyring": &o.NoNewKeyring}
	numbers := map[string]*uint32{"IoUid": &o.IoUid, "IoGid": &o.IoGid}
	for _, key := range slices.Sorted(maps.Keys(r.Options)) {
		value := r.Options[key]
		ok, want := false, ""
		switch {
		case texts[key] != nil:
			*texts[key], ok = value.(string)
			want = "a string in quotes"
		case flags[key] != nil:
			*flags[key], ok = value.(bool)
			want = "true or false"
		case numbers[key] != nil:
			var n int64
			n, ok = value.(int64)
			ok = ok && n >= 0 && n <= 1<<32-2
			*numbers[key] = uint32(n)
			want = "the ID of a user or a group"
		case key == "SystemdCgroup":
			return nil, fmt.Errorf("SystemdCgroup is set by berthd: cgroup_driver is one for the node")
		default:
			return nil, fmt.Errorf("%s is no option of runc's shim", key)
		}
		if !ok {
			return nil, fmt.Errorf("%s is not %s", key, want)
		}
	}
	return o, nil
}

// ShimMissing says why the shim's binary cannot be run; empty: it is there.
func (r *Runtime) ShimMissing() string {
	path := r.ShimPath()
	info, err := os.Stat(path)
	switch {
	case err != nil && r.Path == "":
		return fmt.Sprintf("%s is neither in PATH nor in %s", filepath.Base(path), shimDir)
	case err != nil:
		return err.Error()
	case info.IsDir() || info.Mode()&0o111 == 0:
		return path + " is not executable"
	}
	return ""
}
