package v1

import (
	"fmt"
	"log/slog"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
)

// batchBytes is how much of a list goes into one message: well below what any client accepts (16 MiB in a kubelet,
// 4 MiB in a plain gRPC client), and enough that a node's list is a message or two.
const batchBytes = 1 << 20

// sendAll sends a list in messages of at least one item and of batchBytes or a little more, and each item once.
// An empty list is no message. Items are translated as they go, so that a long list is never in memory twice.
// The stream ends with the handler's return. It ends with an error at an item that fits no message: a client would take
// what is not in a list for removed.
func sendAll[From any, To proto.Message](list []From, translate func(From) To, send func([]To) error) error {
	return sendBatches(list, translate, send, func(_ From, size int) error { return tooLarge(size) })
}

// sendFigures is sendAll for statistics. Those of a pod or a container, named by id, that fit no message are left out,
// with a line in the log: one pod with any number of figures does not take those of all others away.
func sendFigures[From any, To proto.Message](log *slog.Logger, list []From, id func(From) string,
	translate func(From) To, send func([]To) error) error {
	return sendBatches(list, translate, send, func(from From, size int) error {
		log.Warn("statistics are left out of a stream", "id", id(from), "error", tooLarge(size))
		return nil
	})
}

func tooLarge(size int) error {
	return fmt.Errorf("an item of %d bytes does not fit a message of the interface: %w", size,
		errdefs.ErrResourceExhausted)
}

// sendBatches calls misfit for an item that fits no message. Its error ends the stream.
func sendBatches[From any, To proto.Message](list []From, translate func(From) To, send func([]To) error,
	misfit func(from From, size int) error) error {
	var batch []To
	size := 0
	for _, from := range list {
		item := translate(from)
		n := proto.Size(item)
		if n > maxMessage {
			if err := misfit(from, n); err != nil {
				return err
			}
			continue
		}
		if size > 0 && size+n > batchBytes {
			if err := send(batch); err != nil {
				return err
			}
			batch, size = nil, 0
		}
		batch, size = append(batch, item), size+n
	}
	if len(batch) == 0 {
		return nil
	}
	return send(batch)
}
