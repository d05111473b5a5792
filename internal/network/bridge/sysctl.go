package bridge

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func sysctl(path string) (string, error) {
	data, err := os.ReadFile(filepath.Join("/proc/sys", path))
	return strings.TrimSpace(string(data)), err
}

// setSysctl writes a value. A node's /proc/sys may be read-only and right all the same. It looks the path up once,
// where it can: names below /proc/sys/net are those of all network namespaces, in one chain.
func setSysctl(path, value string) error {
	file, err := os.OpenFile(filepath.Join("/proc/sys", path), os.O_WRONLY, 0)
	if err == nil {
		_, err = file.WriteString(value)
		err = errors.Join(err, file.Close())
	}
	if err == nil {
		return nil
	}
	if now, readErr := sysctl(path); readErr == nil && now == value {
		return nil
	}
	return fmt.Errorf("set sysctl %s to %s: %w", path, value, err)
}

// canHaveIPv6 tells whether an interface can have IPv6 addresses. If it is not there, it is taken as made now.
func canHaveIPv6(name string) (bool, error) {
	v, err := sysctl("net/ipv6/conf/" + name + "/disable_ipv6")
	if errors.Is(err, os.ErrNotExist) {
		return ipv6Enabled()
	}
	return v == "0", err
}

// ipv6Enabled tells whether interfaces that are made now can have IPv6 addresses.
func ipv6Enabled() (bool, error) {
	for _, which := range []string{"all", "default"} {
		v, err := sysctl("net/ipv6/conf/" + which + "/disable_ipv6")
		if errors.Is(err, os.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if v != "0" {
			return false, nil
		}
	}
	return true, nil
}
