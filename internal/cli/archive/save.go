package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/connection"
)

// SaveFile writes an archive of images to a file, whole or not at all. What is no regular file, a pipe or a device, is
// written as it is.
func SaveFile(ctx context.Context, images berthv1.ImagesClient, names []string, path string) error {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(Save(ctx, images, names, f), f.Close())
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	err = errors.Join(Save(ctx, images, names, f), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

// Save receives an archive of images. The error is the runtime's where that has ended the call.
func Save(ctx context.Context, images berthv1.ImagesClient, names []string, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := images.Save(ctx, &berthv1.SaveRequest{Images: names})
	if err != nil {
		return connection.Plain(err)
	}
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return connection.Plain(err)
		}
		if _, err := out.Write(message.GetData()); err != nil {
			return fmt.Errorf("write the archive: %w", err)
		}
	}
}
