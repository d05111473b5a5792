package image

import (
	"sync"

	"berth/internal/image/source"
)

// total adds up what the layers of an image take, as they come.
type total struct {
	limits *source.Limits

	mu             sync.Mutex
	entries, bytes uint64
}

func (t *total) add(l *layerRecord) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.entries += max(l.Entries, l.Inodes); t.entries > t.limits.Entries {
		return source.Beyond("the layers of the image have", source.KeyEntries, t.limits.Entries, "entries")
	}
	if t.bytes += max(l.Length, l.Bytes); t.bytes > t.limits.Bytes {
		return source.Beyond("the layers of the image have", source.KeyBytes, t.limits.Bytes, "bytes")
	}
	return nil
}
