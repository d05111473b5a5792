package dockerauth

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// serverOf is the name by which `docker login` stores the credentials for a registry.
func serverOf(host string) string {
	if host == "docker.io" {
		return "https://index.docker.io/v1/"
	}
	return host
}

// Save keeps a user's credentials for a registry in the file at path, which is made if necessary: with the helper that
// the file names for it, else in the file itself. All else in the file stays.
func Save(ctx context.Context, path, host, user, password string) error {
	auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	return change(ctx, path, func(f *File, auths map[string]json.RawMessage) error {
		forget(auths, host)
		entry := json.RawMessage(fmt.Sprintf("{\"auth\":%q}", auth))
		if name := f.helperOf(host); name != "" {
			secret, err := json.Marshal(map[string]string{"ServerURL": serverOf(host), "Username": user, "Secret": password})
			if err != nil {
				return err
			}
			if _, err := f.run(ctx, name, host, "store", string(secret)); err != nil {
				return err
			}
			entry = json.RawMessage("{}") // it says that a helper has it
		}
		auths[serverOf(host)] = entry
		return nil
	})
}

// Forget removes the credentials for a registry from the file, and from the helper that the file names for it. known is
// false where there were none.
func Forget(ctx context.Context, path, host string) (known bool, err error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	err = change(ctx, path, func(f *File, auths map[string]json.RawMessage) error {
		known = forget(auths, host)
		name := f.helperOf(host)
		if name == "" {
			return nil
		}
		if found, err := f.ask(ctx, name, host); err != nil || found == nil {
			return err
		}
		known = true
		_, err := f.run(ctx, name, host, "erase", serverOf(host))
		return err
	})
	return known, err
}

// forget removes the entries for a whole registry, however they are spelt.
func forget(auths map[string]json.RawMessage, host string) (known bool) {
	for key := range auths {
		if of, path := split(key); of == host && path == "" {
			delete(auths, key)
			known = true
		}
	}
	return known
}

// helperOf is the helper that keeps the credentials for a registry; empty: the file does.
func (f *File) helperOf(host string) string {
	if name := f.credHelpers[host]; name != "" {
		return name
	}
	return f.credsStore
}

// change writes the file at path anew, with its auths as fn leaves them. A reader sees the old file or the new one, and
// of two processes that change it at once, one waits for the other.
func change(ctx context.Context, path string, fn func(f *File, auths map[string]json.RawMessage) error) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // the link stays one
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	unlock, err := lock(ctx, filepath.Dir(path))
	if err != nil {
		return err
	}
	defer unlock()
	content, auths := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	f, err := Read(path)
	switch {
	case err == nil:
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if json.Unmarshal(data, &content) != nil || content["auths"] != nil &&
			json.Unmarshal(content["auths"], &auths) != nil { // its error may quote the file
			return fmt.Errorf("credentials: %s is no config.json of docker's kind: %w", path, errdefs.ErrFailedPrecondition)
		}
	case errors.Is(err, fs.ErrNotExist):
		f = &File{path: path, timeout: helperTimeout}
	default:
		return err
	}
	if auths == nil { // "auths": null
		auths = map[string]json.RawMessage{}
	}
	if err := fn(f, auths); err != nil {
		return err
	}
	if content["auths"], err = json.Marshal(auths); err != nil {
		return err
	}
	data, err := json.MarshalIndent(content, "", "\t")
	if err != nil {
		return err
	}
	return replace(path, append(data, '\n'))
}

// lock keeps other processes of Berth from changing files in a directory. A file system without locks has none to wait
// for.
func lock(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
			return func() { f.Close() }, nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("wait for another process that changes files in %s: %w", dir, context.Cause(ctx))
		}
	}
}

// unfinished is in the names of files that are being written, after a point and the name of the file.
const unfinished = ".berth-"

// replace puts a file in place whole. Others may be able to write to its directory: the name of the file beside it is
// not known before, and the file is new. One that a command has left that was killed holds credentials, and goes first:
// the directory is locked. sudo does not take the file away from the user who has called it; a file of anybody else may
// be one that waits for root's credentials.
func replace(path string, data []byte) error {
	dir, prefix := filepath.Dir(path), "."+filepath.Base(path)+unfinished
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), prefix) && entry.Type().IsRegular() {
			if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	file, err := os.CreateTemp(dir, prefix+"*") // of mode 0600
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if old, statErr := os.Stat(path); err == nil && statErr == nil && os.Geteuid() == 0 {
		if s, ok := old.Sys().(*syscall.Stat_t); ok && os.Getenv("SUDO_UID") == fmt.Sprint(s.Uid) {
			err = file.Chown(int(s.Uid), int(s.Gid))
		}
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(file.Name()))
	}
	return err
}
