package image

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// forgettingRoom is how many bytes of the disk the database has beyond what it uses. A removal changes pages of it,
// and bbolt writes a changed page to another place: on a full disk there would be none.
const forgettingRoom = 1 << 20

// keepRoom gives the database room on the disk for its next changes, holes in its file included. What there is no
// room for now is tried again after the next change.
func (d *database) keepRoom() {
	path := filepath.Join(d.root, databaseFile) // bbolt's Path is another one where the file was renamed
	info, err := os.Stat(path)
	if err != nil || info.Size() == d.roomFor {
		return
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, info.Size()+forgettingRoom)
		f.Close()
	}
	if err != nil {
		d.log.Debug("the images' database has no room beyond what it uses", "error", err)
		return
	}
	d.roomFor = info.Size()
}
