package registry

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// asItIs is a request with a context of its own that asks for an answer which is not encoded (RFC 9110, 12.5.3). Where
// nothing is said, net/http asks for gzip and decodes it, and the library asks for zstd, gzip and deflate: a few bytes
// of such an answer become any number of bytes, or take hundreds of megabytes to decode.
func asItIs(ctx context.Context, req *http.Request) *http.Request {
	req = req.Clone(ctx)
	req.Header.Set("Accept-Encoding", "identity")
	return req
}

// decode makes the body of a good answer what it is without its encoding, so that nobody above decodes it. A document
// that a server has packed by gzip is unpacked: some have nothing else. The bound of documents holds for what comes and
// for what it becomes. All other encodings are refused, and so are encoded blobs, whose bytes are counted as they come.
func decode(req *http.Request, resp *http.Response, b *body, isBlob bool) error {
	encoding := strings.ToLower(strings.TrimSpace(strings.Join(resp.Header.Values("Content-Encoding"), ",")))
	if encoding == "" || encoding == "identity" || req.Method == http.MethodHead || resp.StatusCode > 299 {
		return nil
	}
	if isBlob || encoding != "gzip" {
		return fmt.Errorf("%s encodes its answer (%.40q), which was asked for as it is: %w", req.URL.Host, encoding,
			errRefused)
	}
	resp.Header.Del("Content-Encoding")
	resp.Header.Del("Content-Length")
	resp.ContentLength, resp.Uncompressed = -1, true
	resp.Body = &unpacked{packed: b, left: b.left}
	return nil
}

// unpacked is a document that came packed.
type unpacked struct {
	packed *body
	gz     *gzip.Reader // nil: nothing has been read
	left   int64        // of what the document may have
}

func (u *unpacked) Read(p []byte) (int, error) {
	if u.gz == nil {
		gz, err := gzip.NewReader(u.packed)
		if err != nil {
			return 0, u.explain(err)
		}
		u.gz = gz
	}
	n, err := u.gz.Read(p)
	if u.left -= int64(n); u.left < 0 {
		u.Close()
		return 0, u.packed.tooLarge
	}
	return n, u.explain(err)
}

// explain keeps io.EOF apart, which an answer without a body has from its start.
func (u *unpacked) explain(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return fmt.Errorf("unpack the answer: %w", err)
}

func (u *unpacked) Close() error { return u.packed.Close() }
