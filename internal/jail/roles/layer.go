package roles

import (
	"context"
	"io"

	"berth/internal/compression"
	"berth/internal/disk"
	"berth/internal/image/layertar"
	"berth/internal/image/unpack"
	"berth/internal/jail/child"
)

// decompress passes one stream on, decompressed.
func decompress(t *child.Task) (any, error) {
	out := t.Out[0]
	if err := compression.Decompress(out, t.In[0]); err != nil {
		return nil, err
	}
	return nil, out.End()
}

// unpackLayer unpacks the tar of a layer into a directory.
func unpackLayer(t *child.Task) (any, error) {
	var limits unpack.Limits
	if err := t.Decode(&limits); err != nil {
		return nil, err
	}
	var recorder *layertar.Recorder
	if len(t.Files) > 0 {
		var err error
		if recorder, err = layertar.NewRecorder(t.Files[0], limits.Bytes); err != nil {
			return nil, disk.Exhausted(err)
		}
	}
	tar := unpack.Bound(context.Background(), t.In[0], limits, recorder)
	result, err := unpack.Layer(context.Background(), t.Dirs[0], tar, limits,
		unpack.Calls{SetXattr: t.Xattrs.Set, Chown: t.Chown})
	if err != nil {
		return nil, err
	}
	// The padding behind the end of the archive counts for the digest of the layer.
	if _, err = io.Copy(io.Discard, tar); err == nil && recorder != nil {
		err = disk.Exhausted(recorder.Finish())
	}
	return result, err
}
