package disk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Mounted is a file system on a disk.
type Mounted struct {
	Disk *Disk
	Kind string // ext4 or xfs
	Dir  string // an empty directory for its mount points

	server *Server
}

// At is where it is mounted.
func (m *Mounted) At() string { return filepath.Join(m.Dir, "at") }

// Make makes the file system. The error says what this machine lacks for it.
func (m *Mounted) Make() error {
	program := "mkfs." + m.Kind
	args := map[string][]string{"ext4": {"-q", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"},
		"xfs": {"-q", "-K"}}[m.Kind]
	if _, err := exec.LookPath(program); err != nil {
		return err
	}
	file := filepath.Join(m.Dir, "made")
	err := errors.Join(os.Mkdir(m.At(), 0o755), os.Mkdir(m.fuse(), 0o755), os.WriteFile(file, nil, 0o600),
		os.Truncate(file, m.Disk.size))
	if err != nil {
		return err
	}
	defer os.Remove(file)
	if out, err := exec.Command(program, append(args, file)...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, out)
	}
	if err := m.Disk.load(file); err != nil {
		return err
	}
	s, err := Serve(m.Disk, m.fuse())
	if err != nil {
		return err
	}
	return s.Close()
}

func (m *Mounted) fuse() string { return filepath.Join(m.Dir, "fuse") }

// load takes the content of a file, which counts as flushed.
func (d *Disk) load(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	var zero [pageSize]byte
	for at := int64(0); at < d.size; {
		data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // the rest is a hole
		}
		if err != nil {
			return err
		}
		at = data / pageSize * pageSize
		var page [pageSize]byte
		if _, err := f.ReadAt(page[:], at); err != nil {
			return err
		}
		if page != zero {
			d.flushed.write(at, page[:])
		}
		at += pageSize
	}
	d.Restore()
	return nil
}

// Mount gives the disk power, and mounts the file system, which recovers from its journal.
func (m *Mounted) Mount() (err error) {
	m.Disk.Restore()
	if m.server, err = Serve(m.Disk, m.fuse()); err != nil {
		return err
	}
	options := "loop"
	if m.Kind == "xfs" {
		options += ",nouuid" // a copy of the mount of before the cut may be in a mount namespace of somebody else
	}
	out, err := exec.Command("mount", "-t", m.Kind, "-o", options, filepath.Join(m.fuse(), Name), m.At()).CombinedOutput()
	if err != nil {
		return errors.Join(fmt.Errorf("mount a %s: %w: %s", m.Kind, err, strings.TrimSpace(string(out))), m.server.Close())
	}
	return nil
}

// Unmount unmounts the file system and waits until the kernel uses the disk no more: what still has it mounted,
// in another namespace, has ended, and goes meanwhile.
func (m *Mounted) Unmount(wait time.Duration) error {
	err := unmount(m.At(), wait)
	if err != nil {
		err = errors.Join(err, unix.Unmount(m.At(), unix.MNT_DETACH))
	}
	return errors.Join(err, m.server.Close())
}

// unmount waits for those who use a mount.
func unmount(at string, wait time.Duration) error {
	for deadline := time.Now().Add(wait); ; time.Sleep(2 * time.Millisecond) {
		err := unix.Unmount(at, 0)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
	}
}
