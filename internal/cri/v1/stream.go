package v1

import (
	"fmt"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
)

// batchBytes is how much of a list goes into one message: well below what any client accepts (16 MiB in a kubelet,
// 4 MiB in a plain gRPC client), and enough that a node's list is a message or two.
const batchBytes = 1 << 20

// sendAll sends a list in messages of at least one item and of batchBytes or a little more, and each item once.
// An empty list is no message. Items are translated as they go, so that a long list is never in memory twice.
// The stream ends with the handler's return.
func sendAll[From any, To proto.Message](list []From, translate func(From) To, send func([]To) error) error {
	var batch []To
	size := 0
	for _, from := range list {
		item := translate(from)
		n := proto.Size(item)
		if n > maxMessage {
			return fmt.Errorf("an item of %d bytes does not fit a message of the interface: %w", n, errdefs.ErrResourceExhausted)
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
