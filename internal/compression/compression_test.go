package compression

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// TestAWindowThatIsTooLargeIsALimit, and no fault of the stream: its packer was told to use one, as by zstd --long=31.
func TestAWindowThatIsTooLargeIsALimit(t *testing.T) {
	for name, c := range map[string]struct {
		window byte // RFC 8878, 3.1.1.1.2: the exponent above 10, and three bits of mantissa
		want   error
	}{
		"128 MiB": {17 << 3, nil}, "144 MiB": {17<<3 | 1, errdefs.ErrResourceExhausted},
		"256 MiB": {18 << 3, errdefs.ErrResourceExhausted},
	} {
		frame := []byte{0x28, 0xb5, 0x2f, 0xfd, 0, c.window, 1, 0, 0} // with one empty block
		err := Decompress(&bytes.Buffer{}, bytes.NewReader(frame))
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if c.want != nil && !strings.Contains(err.Error(), "128 MiB") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
