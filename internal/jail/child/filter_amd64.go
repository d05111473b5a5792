package child

import "golang.org/x/sys/unix"

const (
	auditArch       = unix.AUDIT_ARCH_X86_64
	archThreadFlags = unix.CLONE_SETTLS
)

// archFilesystemCalls have other numbers, or none, elsewhere.
var archFilesystemCalls = []uint32{unix.SYS_NEWFSTATAT}
