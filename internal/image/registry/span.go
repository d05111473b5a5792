package registry

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// span is a part of a blob that a request asks for, and what the answer says. It belongs to one request with the
// requests that redirects make of it.
type span struct {
	from, to int64 // to excluded; of a good answer: up to where it goes, which may be less
	size     int64 // of the blob

	whole bool     // the answer is the whole blob: the host, or one that it redirects to, knows no ranges
	at    *url.URL // where the answer came from
	moved bool     // it came after a redirect
}

type spanKey struct{}

// ask makes a request, which is the caller's own, ask for the part alone.
func (s *span) ask(req *http.Request) *http.Request {
	if s != nil {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", s.from, s.to-1))
	}
	return req
}

// check refuses an answer that has other bytes than those that were asked for. A nil span is that of a request for the
// rest of a blob, or for anything else.
func (s *span) check(req *http.Request, resp *http.Response) error {
	if s == nil {
		if err := checkWhole(req, resp); err != nil {
			return err
		}
		return checkRest(req, resp)
	}
	switch resp.StatusCode {
	case http.StatusPartialContent:
		if err := s.checkPart(resp); err != nil {
			return err
		}
	case http.StatusOK:
		if s.whole = true; s.from > 0 {
			return &rangeError{host: req.URL.Host, text: "it answers a request for a range with the whole"}
		}
		if err := checkLength(req, resp, s.size); err != nil {
			return err
		}
	default:
		return nil
	}
	s.at, s.moved = req.URL, req.Response != nil
	return nil
}

func (s *span) checkPart(resp *http.Response) error {
	host := resp.Request.URL.Host
	if encoding := resp.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return &rangeError{host: host, text: fmt.Sprintf("it encodes a range (%.40q)", encoding)}
	}
	header := resp.Header.Get("Content-Range")
	got, ok := parseContentRange(header)
	switch {
	case !ok, got.from != s.from, got.to > s.to, got.size >= 0 && got.size != s.size:
		return &rangeError{host: host, text: fmt.Sprintf("asked for the bytes %d-%d of %d it sends %.80q", s.from, s.to-1,
			s.size, header)}
	case resp.ContentLength >= 0 && resp.ContentLength != got.to-got.from:
		return &rangeError{host: host, text: fmt.Sprintf("it sends %d bytes as %.80q", resp.ContentLength, header)}
	}
	s.to = got.to
	return nil
}

// sizeKey is for the size of the blob of which a request wants the rest.
type sizeKey struct{}

// checkWhole refuses something else than the blob in the place of all of it, such as a page that a proxy or a mirror
// has for everything. Otherwise another host would go on where it ends.
func checkWhole(req *http.Request, resp *http.Response) error {
	size, ok := req.Context().Value(sizeKey{}).(int64)
	isBlob := strings.Contains(req.URL.Path, "/blobs/") || req.Response != nil // and no token
	if !ok || !isBlob || resp.StatusCode != http.StatusOK {
		return nil
	}
	return checkLength(req, resp, size)
}

func checkLength(req *http.Request, resp *http.Response, size int64) error {
	if encoding := resp.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return nil // which is refused later
	}
	if resp.ContentLength >= 0 && resp.ContentLength != size {
		return &rangeError{host: req.URL.Host, text: fmt.Sprintf("it sends %d bytes of type %.80q for a blob of %d",
			resp.ContentLength, resp.Header.Get("Content-Type"), size)}
	}
	return nil
}

// checkRest refuses the wrong answer to a request for the rest of a blob. The library believes it.
func checkRest(req *http.Request, resp *http.Response) error {
	text, asked := strings.CutPrefix(req.Header.Get("Range"), "bytes=")
	if !asked || resp.StatusCode != http.StatusPartialContent {
		return nil
	}
	header := resp.Header.Get("Content-Range")
	from, err := strconv.ParseInt(strings.TrimSuffix(text, "-"), 10, 64)
	if got, ok := parseContentRange(header); err != nil || !ok || got.from != from {
		return &rangeError{host: req.URL.Host, text: fmt.Sprintf("asked for the bytes %s it sends %.80q", text, header)}
	}
	return nil
}

type contentRange struct {
	from, to int64 // to excluded
	size     int64 // -1: not said
}

// parseContentRange reads the header of that name (RFC 9110, 14.4).
func parseContentRange(header string) (r contentRange, ok bool) {
	text, ok := strings.CutPrefix(header, "bytes ")
	part, size, ok2 := strings.Cut(text, "/")
	first, last, ok3 := strings.Cut(part, "-")
	if !ok || !ok2 || !ok3 {
		return r, false
	}
	number := func(s string) int64 {
		n, err := strconv.ParseUint(s, 10, 62)
		if err != nil {
			ok = false
		}
		return int64(n)
	}
	r = contentRange{from: number(first), to: number(last) + 1, size: -1}
	if size != "*" {
		r.size = number(size)
	}
	return r, ok && r.from < r.to && (r.size < 0 || r.to <= r.size)
}

// rangeError is an answer to a request for a part of a blob that is of no use.
type rangeError struct{ host, text string }

func (e *rangeError) Error() string { return e.host + ": " + e.text }
