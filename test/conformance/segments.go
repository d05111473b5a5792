package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// segmentSize is that of the System V shared memory which critest makes on the host to look for it in pods. It does not
// remove it.
const segmentSize = "1048576"

// segments are the IDs of unattached shared memory segments of a size in bytes.
func segments(size string) (map[int]bool, error) {
	data, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		return nil, err
	}
	found := map[int]bool{}
	for line := range strings.Lines(string(data)) {
		// key shmid perms size cpid lpid nattch …
		fields := strings.Fields(line)
		if len(fields) < 7 || fields[3] != size || fields[6] != "0" {
			continue
		}
		var id int
		if _, err := fmt.Sscan(fields[1], &id); err != nil {
			return nil, err
		}
		found[id] = true
	}
	return found, nil
}

// removeSegments removes those that were not there before.
func removeSegments(size string, before map[int]bool) error {
	now, err := segments(size)
	if err != nil {
		return err
	}
	for id := range now {
		if before[id] {
			continue
		}
		if _, err := unix.SysvShmCtl(id, unix.IPC_RMID, nil); err != nil {
			return fmt.Errorf("remove shared memory segment %d: %w", id, err)
		}
	}
	return nil
}
