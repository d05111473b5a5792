package layertar

import (
	"golang.org/x/sys/unix"

	"berth/internal/jail/wire"
)

// Role is that of a child which makes the tar of a layer again. It gets the record as a file and the layer's directory,
// and writes to a ring. Its capability is what it takes to read files of others.
var Role = &wire.Role{Name: "make the tar of a layer again", Filesystem: true, Capabilities: []uintptr{
	unix.CAP_DAC_OVERRIDE,
}}

// Memory is what such a child needs.
const Memory = 64 << 20
