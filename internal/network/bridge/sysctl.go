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

// setSysctl writes only what differs: a node's /proc/sys may be read-only and right all the same.
func setSysctl(path, value string) error {
	now, err := sysctl(path)
	if err != nil {
		return fmt.Errorf("sysctl %s: %w", path, err)
	}
	if now == value {
		return nil
	}
	if err := os.WriteFile(filepath.Join("/proc/sys", path), []byte(value), 0); err != nil {
		return fmt.Errorf("set sysctl %s to %s: %w", path, value, err)
	}
	return nil
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
