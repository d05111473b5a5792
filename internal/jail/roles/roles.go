// Package roles lists the tasks that children of a jail can do.
package roles

import (
	checkpoint "berth/internal/checkpoint/archive"
	"berth/internal/compression"
	"berth/internal/image/archive"
	"berth/internal/image/layertar"
	"berth/internal/image/unpack"
	"berth/internal/image/variant"
	"berth/internal/jail/child"
)

// All returns them.
func All() child.Roles {
	return child.Roles{
		compression.Role:      decompress,
		unpack.Role:           unpackLayer,
		archive.Role:          readArchive,
		layertar.Role:         rebuildLayer,
		variant.PlanRole:      planVariant,
		variant.MakeRole:      makeVariant,
		variant.CheckRole:     checkVariant,
		checkpoint.ReadRole:   readCheckpoint,
		checkpoint.UnpackRole: unpackCheckpoint,
	}
}
