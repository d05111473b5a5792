package image

// briefError keeps the text of an error short: digests, media types, names and platforms in it are an image's own,
// and may have megabytes each, which neither a log nor an answer should carry.
type briefError struct{ err error }

const (
	briefHead = 3000
	briefTail = 1000
)

func brief(err error) error {
	if len(err.Error()) <= briefHead+briefTail {
		return err
	}
	return &briefError{err}
}

func (e *briefError) Error() string {
	text := e.err.Error()
	return text[:briefHead] + "…" + text[len(text)-briefTail:]
}

func (e *briefError) Unwrap() error { return e.err }
