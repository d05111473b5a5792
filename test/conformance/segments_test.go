package main

import (
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOnlySegmentsMadeMeanwhileAreRemoved(t *testing.T) {
	const mine = 3<<20 + 4096 // a size that nothing else uses
	segment := func() int {
		id, err := unix.SysvShmGet(unix.IPC_PRIVATE, mine, unix.IPC_CREAT|0o600)
		if err != nil {
			t.Skipf("no System V shared memory: %v", err)
		}
		t.Cleanup(func() { _, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) })
		return id
	}
	old := segment()
	before, err := segments(strconv.Itoa(mine))
	if err != nil {
		t.Fatal(err)
	}
	made := segment()
	if err := removeSegments(strconv.Itoa(mine), before); err != nil {
		t.Fatal(err)
	}
	now, err := segments(strconv.Itoa(mine))
	if err != nil {
		t.Fatal(err)
	}
	if !now[old] || now[made] {
		t.Errorf("segments %v: want %d and not %d", now, old, made)
	}
}
