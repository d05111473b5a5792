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

	"github.com/containerd/errdefs"

	"berth/internal/disk"
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
	return change(path, func(f *File, auths map[string]json.RawMessage) error {
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
	err = change(path, func(f *File, auths map[string]json.RawMessage) error {
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

// change writes the file at path anew, with its auths as fn leaves them. A reader sees the old file or the new one.
func change(path string, fn func(f *File, auths map[string]json.RawMessage) error) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // the link stays one
	}
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
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
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
	return disk.WriteFile(path, append(data, '\n'), 0o600)
}
