package variant

import (
	"os"

	"golang.org/x/sys/unix"

	"berth/internal/fileattr"
)

// TakesRoot tells whether the root directory of a layer has to take its look from the directory below, given that the
// layer's tar says nothing of it: that is so if it looks as unpacking makes it, and the one below does not. It follows
// no name in either, so that it needs no process of its own.
func TakesRoot(layer, below string) (bool, error) {
	own, err := attributesOf(layer)
	if err != nil {
		return false, err
	}
	if own.Mode != unix.S_IFDIR|0o755 || own.UID != 0 || own.GID != 0 {
		return false, nil
	}
	under, err := attributesOf(below)
	return err == nil && !under.Equal(own), err
}

func attributesOf(dir string) (*fileattr.Attributes, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return fileattr.Of(int(f.Fd()))
}
