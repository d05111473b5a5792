package config

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Versions of the CRI, as CreateHostPaths names them.
const (
	APIv1       = "v1"
	APIv1alpha2 = "v1alpha2"
	APIv1alpha1 = "v1alpha1"
)

// CreatesHostPaths tells whether a version of the CRI has missing host paths made.
func (c *Config) CreatesHostPaths(api string) bool { return slices.Contains(c.CreateHostPaths, api) }

// PodDefaults are what pods of a runtime handler, and their containers, have without asking for it.
type PodDefaults struct {
	Sysctls map[string]string
	Env     []Variable
	Mounts  []HostMount
	Devices []HostDevice
	ShmSize uint64 // bytes
}

// Variable is a variable of the environment.
type Variable struct{ Name, Value string }

// HostMount is a path of the host in a container.
type HostMount struct {
	HostPath, ContainerPath string
	Readonly                bool
}

// HostDevice is a device of the host in a container.
type HostDevice struct {
	HostPath, ContainerPath string
	Permissions             string // of r, w and m
}

// PodDefaults are those of a runtime handler: the node's, but for what the handler has of the same name.
func (c *Config) PodDefaults(handler string) (*PodDefaults, error) {
	own := c.Runtimes[handler]
	out := &PodDefaults{Sysctls: map[string]string{}, ShmSize: size(cmp.Or(own.ShmSize, c.ShmSize))}
	key := "runtimes." + handler + "."
	var errs []error
	for _, from := range []struct {
		key                           string
		sysctls, env, mounts, devices []string
	}{
		{"", c.DefaultSysctls, c.DefaultEnv, c.DefaultMounts, c.DefaultDevices},
		{key, own.DefaultSysctls, own.DefaultEnv, own.DefaultMounts, own.DefaultDevices},
	} {
		sysctls, err := parseSysctls(from.key+"default_sysctls", from.sysctls)
		errs = append(errs, err)
		for _, s := range sysctls {
			out.Sysctls[s.Name] = s.Value
		}
		env, err := parseEnv(from.key+"default_env", from.env)
		errs = append(errs, err)
		for _, v := range env {
			same := func(other Variable) bool { return other.Name == v.Name }
			out.Env = append(slices.DeleteFunc(out.Env, same), v)
		}
		mounts, err := parseMounts(from.key+"default_mounts", from.mounts)
		errs = append(errs, err)
		for _, m := range mounts {
			same := func(other HostMount) bool { return other.ContainerPath == m.ContainerPath }
			out.Mounts = append(slices.DeleteFunc(out.Mounts, same), m)
		}
		devices, err := parseDevices(from.key+"default_devices", from.devices)
		errs = append(errs, err)
		for _, d := range devices {
			same := func(other HostDevice) bool { return other.ContainerPath == d.ContainerPath }
			out.Devices = append(slices.DeleteFunc(out.Devices, same), d)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return out, nil
}

// pods checks the defaults of pods, the node's and those of each runtime handler.
func (v *validation) pods(c *Config) {
	for _, api := range c.CreateHostPaths {
		v.oneOf("create_host_paths", api, APIv1, APIv1alpha2, APIv1alpha1)
	}
	v.directories("refuse_missing_host_paths", c.RefuseMissing)
	v.shmSize("shm_size", c.ShmSize)
	v.defaults("", c.DefaultSysctls, c.DefaultEnv, c.DefaultMounts, c.DefaultDevices)
	for name, r := range c.Runtimes {
		key := "runtimes." + name + "."
		v.defaults(key, r.DefaultSysctls, r.DefaultEnv, r.DefaultMounts, r.DefaultDevices)
		if r.ShmSize != "" {
			v.shmSize(key+"shm_size", r.ShmSize)
		}
	}
}

func (v *validation) defaults(key string, sysctls, env, mounts, devices []string) {
	_, sysctlErr := parseSysctls(key+"default_sysctls", sysctls)
	_, envErr := parseEnv(key+"default_env", env)
	_, mountErr := parseMounts(key+"default_mounts", mounts)
	_, deviceErr := parseDevices(key+"default_devices", devices)
	for _, err := range []error{sysctlErr, envErr, mountErr, deviceErr} {
		if err != nil {
			v.errs = append(v.errs, err)
		}
	}
}

// minShm is the least that holds a pod's files in /etc, which lie on the same tmpfs.
const minShm = 1 << 20

func (v *validation) shmSize(key, text string) {
	if v.size(key, text); size(text) > 0 && size(text) < minShm {
		v.fail(key, "%q is less than 1m", text)
	}
}

var sysctlName = regexp.MustCompile(`^[A-Za-z0-9_-]+([./][A-Za-z0-9_:*-]+)+$`)

// parseSysctls gives names with dots.
func parseSysctls(key string, list []string) ([]Variable, error) {
	return assignments(key, list, func(name, _ string) (string, error) {
		if !sysctlName.MatchString(name) {
			return "", errors.New("is no name of a sysctl such as net.ipv4.ip_forward")
		}
		return strings.ReplaceAll(name, "/", "."), nil
	})
}

func parseEnv(key string, list []string) ([]Variable, error) {
	return assignments(key, list, func(name, value string) (string, error) {
		if strings.ContainsRune(name+value, 0) {
			return "", errors.New("has a NUL byte")
		}
		return name, nil
	})
}

// assignments reads the entries of a list that are name=value. Its errors do not tell the value, nor an entry without a
// name, which may be a token.
func assignments(key string, list []string, check func(name, value string) (string, error)) ([]Variable, error) {
	var (
		out  []Variable
		errs []error
	)
	for i, s := range list {
		name, value, ok := strings.Cut(s, "=")
		entry := fmt.Sprintf("entry %d", i+1)
		var err error
		if !ok {
			err = errors.New("is not name=value")
		} else if entry += fmt.Sprintf(" (%q)", name); name == "" {
			err = errors.New("has no name")
		} else if name, err = check(name, value); err == nil &&
			slices.ContainsFunc(out, func(v Variable) bool { return v.Name == name }) {
			err = errors.New("is given twice")
		}
		if err != nil {
			errs = append(errs, &KeyError{key, entry + " " + err.Error()})
			continue
		}
		out = append(out, Variable{name, value})
	}
	return out, errors.Join(errs...)
}

func parseMounts(key string, list []string) ([]HostMount, error) {
	return placed(key, list, parseMount, func(m HostMount) string { return m.ContainerPath })
}

func parseDevices(key string, list []string) ([]HostDevice, error) {
	return placed(key, list, parseDevice, func(d HostDevice) string { return d.ContainerPath })
}

// placed reads the entries of a list that have a path each in containers.
func placed[T any](key string, list []string, parse func(string) (T, error), at func(T) string) ([]T, error) {
	var (
		out  []T
		errs []error
	)
	for _, s := range list {
		one, err := parse(s)
		if err == nil && slices.ContainsFunc(out, func(other T) bool { return at(other) == at(one) }) {
			err = errors.New("its path in the container is given twice")
		}
		if err != nil {
			errs = append(errs, &KeyError{key, fmt.Sprintf("%q: %v", s, err)})
			continue
		}
		out = append(out, one)
	}
	return out, errors.Join(errs...)
}

func parseMount(s string) (m HostMount, err error) {
	parts := strings.Split(s, ":")
	if len(parts) == 3 && (parts[2] == "ro" || parts[2] == "rw") {
		m.Readonly = parts[2] == "ro"
		parts = parts[:2]
	}
	if len(parts) != 2 || !path.IsAbs(parts[0]) || !path.IsAbs(parts[1]) || strings.ContainsRune(s, 0) {
		return m, errors.New("is not /of/host:/in/container, with :ro or :rw behind it")
	}
	m.HostPath, m.ContainerPath = path.Clean(parts[0]), path.Clean(parts[1])
	if m.ContainerPath == "/" {
		return m, errors.New("the root file system of a container cannot be replaced")
	}
	return m, nil
}

func parseDevice(s string) (HostDevice, error) {
	parts := strings.Split(s, ":")
	d := HostDevice{HostPath: parts[0], ContainerPath: parts[0], Permissions: "rwm"}
	rest := parts[1:]
	if len(rest) > 0 && strings.HasPrefix(rest[0], "/") {
		d.ContainerPath, rest = rest[0], rest[1:]
	}
	if len(rest) > 0 {
		d.Permissions, rest = rest[0], rest[1:]
	}
	if len(rest) > 0 || !path.IsAbs(d.HostPath) || strings.ContainsRune(s, 0) || d.Permissions == "" ||
		strings.Trim(d.Permissions, "rwm") != "" {
		return d, errors.New("is not /dev/of/host, with :/dev/in/container and :rwm behind it or not")
	}
	d.HostPath, d.ContainerPath = path.Clean(d.HostPath), path.Clean(d.ContainerPath)
	return d, nil
}
