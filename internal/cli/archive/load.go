// Package archive sends archives of images to berthd, and receives them.
package archive

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/connection"
)

// Load sends an archive, and returns the images that berthd has imported from it. pin says that disk space is not to be
// freed by removing them. The error is the runtime's where that has ended the call.
func Load(ctx context.Context, images berthv1.ImagesClient, in io.Reader, pin bool) ([]*berthv1.LoadedImage, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := images.Load(ctx)
	if err != nil {
		return nil, connection.Plain(err)
	}
	in = bufio.NewReaderSize(in, chunk)
	buf := make([]byte, chunk)
	for first := true; ; first = false {
		n, readErr := io.ReadFull(in, buf)
		if n > 0 || first {
			err := stream.Send(&berthv1.LoadRequest{Data: buf[:n], Pin: first && pin})
			if errors.Is(err, io.EOF) { // CloseAndRecv says why
				break
			}
			if err != nil {
				return nil, connection.Plain(err)
			}
		}
		if errors.Is(readErr, io.EOF) || errors.Is(readErr, io.ErrUnexpectedEOF) {
			break
		}
		if readErr != nil {
			return nil, fmt.Errorf("read the archive: %w", readErr)
		}
	}
	response, err := stream.CloseAndRecv()
	if err != nil {
		return nil, connection.Plain(err)
	}
	return response.GetImages(), nil
}

// chunk is how many bytes of an archive a message carries.
const chunk = 1 << 20
