package cgroup

import (
	"fmt"
	"path"
	"strings"

	"github.com/containerd/errdefs"
)

// Path is a cgroup path of an OCI runtime spec as a path below the hierarchies' roots: a plain path for cgroupfs, and
// `slice:prefix:name` (a unit `prefix-name.scope`) for systemd.
func Path(spec string, systemd bool) (string, error) {
	if !systemd {
		if !path.IsAbs(spec) {
			return "", fmt.Errorf("cgroup path %q is not absolute: %w", spec, errdefs.ErrInvalidArgument)
		}
		return path.Clean(spec), nil
	}
	parts := strings.Split(spec, ":")
	if len(parts) != 3 || parts[2] == "" {
		return "", fmt.Errorf("cgroup path %q is not slice:prefix:name: %w", spec, errdefs.ErrInvalidArgument)
	}
	slice, err := Slice(parts[0])
	if err != nil {
		return "", err
	}
	unit := parts[2]
	if !strings.HasSuffix(unit, ".slice") {
		if parts[1] != "" {
			unit = parts[1] + "-" + unit
		}
		unit += ".scope"
	}
	return path.Join(slice, unit), nil
}

// Slice is where systemd puts a slice unit: `a-b.slice` lies in `/a.slice/a-b.slice`. Empty is system.slice, and
// `-.slice` is the root.
func Slice(name string) (string, error) {
	switch name {
	case "":
		return "/system.slice", nil
	case "-.slice":
		return "/", nil
	}
	stem, ok := strings.CutSuffix(name, ".slice")
	if !ok || stem == "" || strings.Contains(name, "/") {
		return "", fmt.Errorf("%q is not the name of a systemd slice: %w", name, errdefs.ErrInvalidArgument)
	}
	full, prefix := "/", ""
	for part := range strings.SplitSeq(stem, "-") {
		if part == "" {
			return "", fmt.Errorf("%q is not the name of a systemd slice: %w", name, errdefs.ErrInvalidArgument)
		}
		prefix += part
		full = path.Join(full, prefix+".slice")
		prefix += "-"
	}
	return full, nil
}
