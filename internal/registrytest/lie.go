package registrytest

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// part are the bytes from..to of a blob, to excluded.
type part struct{ from, to int64 }

// parsePart reads the header Range, with one range.
func parsePart(header string, size int64) (p part, ok bool) {
	text, ok := strings.CutPrefix(header, "bytes=")
	first, last, found := strings.Cut(text, "-")
	from, err := strconv.ParseInt(first, 10, 64)
	if !ok || !found || err != nil || from >= size {
		return p, false
	}
	p = part{from, size}
	if last != "" {
		to, err := strconv.ParseInt(last, 10, 64)
		if err != nil || to < from {
			return p, false
		}
		p.to = min(to+1, size)
	}
	return p, true
}

// serve answers a request for a part wrongly.
func (l Lie) serve(w http.ResponseWriter, data []byte, asked part) {
	size := int64(len(data))
	if l == WholeLater && asked.from > 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		_, _ = w.Write(data)
		return
	}
	sent, says := asked, asked
	switch l {
	case WrongStart:
		sent.from++
		says = sent
	case WrongBytes:
		if asked.from > 0 {
			sent = part{asked.from - 1, asked.to - 1}
		}
	case WrongSize:
		size++
	case TooLong:
		sent.to = min(sent.to+1, size)
		says.to = says.to + 1
	case Shorter:
		sent.to = sent.from + (sent.to-sent.from+1)/2
		says = sent
	case Encoded:
		w.Header().Set("Content-Encoding", "gzip")
	}
	if l != NoHeader {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", says.from, says.to-1, size))
	}
	length := sent.to - sent.from
	if l == WrongLength {
		length++
	}
	w.Header().Set("Content-Length", strconv.FormatInt(length, 10))
	w.WriteHeader(http.StatusPartialContent)
	_, _ = w.Write(data[sent.from:sent.to])
}
