package unpack

import (
	"golang.org/x/sys/unix"

	"berth/internal/jail/wire"
)

// Role is that of a child which unpacks a layer: its task is Limits, its answer a Result. Its capabilities
// are what it takes to give files other owners, and to work on them afterwards.
var Role = &wire.Role{
	Name: "unpack", Filesystem: true,
	Capabilities: []uintptr{
		unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_MKNOD, unix.CAP_SETFCAP,
	},
}
