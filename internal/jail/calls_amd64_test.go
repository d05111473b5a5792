package jail_test

import "golang.org/x/sys/unix"

var archFileCalls = []uintptr{unix.SYS_NEWFSTATAT}

const threadFlags = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_SYSVSEM |
	unix.CLONE_THREAD | unix.CLONE_SETTLS
