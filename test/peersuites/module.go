package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// module is a version of a Go module. Sum is that of its archive: what the proxy serves is checked here too, since no
// go.sum of this tree names the module.
type module struct {
	path, version, sum string
}

var (
	containerdModule = module{"github.com/containerd/containerd/v2", "v2.3.4",
		"h1:c2PJo/9UGVdiiw8SwrxuLxWGY+9b3jQ6Xp9zntneIvI="}
	crioModule = module{"github.com/cri-o/cri-o", "v1.36.3", "h1:7PaWWmxWct0eyl9GmCn/e7+iE/xPD4dTeY9m89nIS0Q="}
)

// download is the directory of the module in Go's cache. Nothing may be written there.
func (m module) download(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", m.path+"@"+m.version)
	cmd.Dir = os.TempDir() // in no module, whose go.sum would be asked
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	var got struct{ Dir, Sum, Error string }
	if jsonErr := json.Unmarshal(out, &got); jsonErr != nil {
		return "", fmt.Errorf("go mod download %s: %w", m.path, errors.Join(err, jsonErr))
	}
	if got.Error != "" {
		return "", fmt.Errorf("go mod download %s: %s", m.path, got.Error)
	}
	if got.Sum != m.sum {
		return "", fmt.Errorf("%s %s has the sum %s, want %s", m.path, m.version, got.Sum, m.sum)
	}
	return got.Dir, nil
}

// copyTree copies directories and regular files, and lets the owner write them, which files of Go's cache do not.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		switch {
		case entry.IsDir():
			return os.MkdirAll(target, 0o755)
		case entry.Type().IsRegular():
			return copyFile(path, target)
		default:
			return fmt.Errorf("%s is neither a directory nor a file", path)
		}
	})
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, info.Mode().Perm()|0o200)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, in)
	return err
}
