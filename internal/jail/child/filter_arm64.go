package child

import "golang.org/x/sys/unix"

const (
	auditArch       = unix.AUDIT_ARCH_AARCH64
	archThreadFlags = 0
)

// archFilesystemCalls have other numbers, or none, elsewhere.
var archFilesystemCalls = []uint32{unix.SYS_FSTATAT}
