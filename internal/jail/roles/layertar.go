package roles

import (
	"berth/internal/image/layertar"
	"berth/internal/jail/child"
)

// rebuildLayer makes the tar of a layer again from its directory and the record of it.
func rebuildLayer(t *child.Task) (any, error) {
	out := t.Out[0]
	if err := layertar.Rebuild(t.Dirs[0], t.Files[0], out); err != nil {
		return nil, err
	}
	return nil, out.End()
}
