package poddir

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ClaimedError means that another command keeps the pods of a directory of manifests.
type ClaimedError struct {
	Directory string
	PID       string // of that command; empty: it is not known
}

func (e *ClaimedError) Error() string {
	process := ""
	if e.PID != "" {
		process = " (process " + e.PID + ")"
	}
	return fmt.Sprintf("`berth apply` of %s runs already%s", e.Directory, process)
}

// WasClaimed says whether a command has ever kept the pods of a directory.
func (s *Store) WasClaimed(directory string) bool {
	_, err := os.Stat(s.claim(directory))
	return err == nil
}

// claim is the file that is locked for a directory.
func (s *Store) claim(directory string) string {
	sum := sha256.Sum256([]byte(s.Address + "\x00" + directory))
	return filepath.Join(s.Root, "applied", hex.EncodeToString(sum[:8])+".lock")
}

// Claim says that this command keeps the pods of a directory of manifests, until release is called or the command ends,
// however it does. The error is a *ClaimedError while another command does.
//
// The lock is a file of the store and not the directory itself: who may only read the directory could lock that, too.
func (s *Store) Claim(directory string) (release func(), err error) {
	path := s.claim(directory)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer file.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		text, _ := io.ReadAll(io.LimitReader(file, 32))
		return nil, &ClaimedError{Directory: directory, PID: strings.TrimSpace(string(text))}
	}
	// The file stays after the end: a removal would race with a command that has just opened it.
	err = file.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintln(file, os.Getpid())
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return func() { file.Close() }, nil
}
