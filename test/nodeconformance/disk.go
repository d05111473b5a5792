package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// countDisk has the kernel count what cgroups read from and write to the disk of a directory. Since Linux 6.10 blkio of
// cgroup v1 counts nothing of a disk before a limit was set for it for the first time, so that a kubelet has no such
// figures. cgroups are those of the suite. Cgroup v2 always counts.
func countDisk(cgroups []string, dir string) error {
	for _, cgroup := range cgroups {
		limit := filepath.Join(cgroup, "blkio.throttle.read_bps_device")
		if _, err := os.Stat(limit); err != nil {
			continue
		}
		disk, err := diskOf(dir)
		if err != nil || disk == "" {
			return err
		}
		for _, rate := range []string{"1000000000000", "0"} { // bytes a second; 0: no limit
			if err := os.WriteFile(limit, []byte(disk+" "+rate), 0); err != nil {
				return fmt.Errorf("have reads and writes of the disk %s counted: %w", disk, err)
			}
		}
	}
	return nil
}

// diskOf is the number of the disk that a directory is on, MAJOR:MINOR, or nothing for a file system without one.
func diskOf(dir string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return "", err
	}
	number := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	device, err := filepath.EvalSymlinks(filepath.Join("/sys/dev/block", number))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(device, "partition")); err != nil {
		return number, nil
	}
	whole, err := os.ReadFile(filepath.Join(filepath.Dir(device), "dev"))
	return strings.TrimSpace(string(whole)), err
}
