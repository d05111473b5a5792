package roles

import (
	"berth/internal/checkpoint/archive"
	"berth/internal/jail/child"
)

func readCheckpoint(t *child.Task) (any, error) { return archive.Read(t.Files[0]) }

func unpackCheckpoint(t *child.Task) (any, error) { return nil, archive.Unpack(t.Files[0], t.Dirs[0]) }
