// Package logrotation rotates the logs of containers as a kubelet does, with the defaults of its configuration: a log
// of 10 MiB is renamed and the runtime opens a new one; older parts are compressed, and five files are kept in all.
package logrotation

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/logpart"
)

const (
	// Period is how often logs are looked at.
	Period = 10 * time.Second

	maxSize    = 10 << 20 // containerLogMaxSize
	maxFiles   = 5        // containerLogMaxFiles
	compressed = ".gz"
	temporary  = ".tmp"
)

// Rotation rotates logs of one runtime.
type Rotation struct{ Runtime cri.RuntimeServiceClient }

// Rotate rotates the log of a container if it is full. One that is not there is not.
func (r *Rotation) Rotate(ctx context.Context, id, log string) error {
	info, err := os.Stat(log)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() < maxSize {
		return nil
	}
	if err != nil {
		return err
	}
	status, err := r.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return connection.Plain(err)
	}
	if status.GetStatus().GetState() != cri.ContainerState_CONTAINER_RUNNING {
		return nil // nothing is written any more
	}
	parts, err := prune(log)
	if err != nil {
		return err
	}
	part := logpart.Next(log, parts, time.Now())
	if err := os.Rename(log, part); err != nil {
		return err
	}
	if _, err := r.Runtime.ReopenContainerLog(ctx, &cri.ReopenContainerLogRequest{ContainerId: id}); err != nil {
		back := logpart.Back(part, log)
		if errors.Is(back, fs.ErrExist) {
			return nil // the runtime has opened the new log, and only its answer was lost
		}
		return errors.Join(fmt.Errorf("open a new log: %w", connection.Plain(err)), back)
	}
	return nil
}

// prune compresses the parts of a log and removes the oldest, so that there is room for one more part beside the log.
// The part that is made next stays as it is: what follows the log may still read it. The result is what is left of the
// parts, by the names that they had before they were compressed.
func prune(log string) ([]string, error) {
	parts, err := filepath.Glob(log + ".*")
	if err != nil {
		return nil, err
	}
	slices.Sort(parts)
	var kept []string
	for _, part := range parts {
		if strings.HasSuffix(part, temporary) { // of a command that was killed
			if err := os.Remove(part); err != nil {
				return nil, err
			}
			continue
		}
		kept = append(kept, part)
	}
	for len(kept) > maxFiles-2 {
		if err := os.Remove(kept[0]); err != nil {
			return nil, err
		}
		kept = kept[1:]
	}
	for _, part := range kept {
		if !strings.HasSuffix(part, compressed) {
			if err := compress(part); err != nil {
				return nil, err
			}
		}
	}
	return kept, nil
}

// compress replaces a file by its compressed form.
func compress(path string) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	name := path + temporary
	out, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	writer := gzip.NewWriter(out)
	_, err = io.Copy(writer, in)
	if err = errors.Join(err, writer.Close(), out.Close()); err == nil {
		err = os.Rename(name, path+compressed)
	}
	if err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return os.Remove(path)
}
