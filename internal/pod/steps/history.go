package steps

import (
	"bytes"
	"slices"

	"berth/internal/codec"
)

// History is a list of timings as JSON. Records have them in this form: they are read for verbose statuses only, and a
// start of berthd decodes the records of all pods and containers. The empty History is that of no timings. It is not
// changed once it is made.
type History []byte

// NewHistory encodes timings.
func NewHistory(timings []Timing) History { return History(nil).With(timings) }

// With is the history with further timings.
func (h History) With(timings []Timing) History {
	if len(timings) == 0 {
		return h
	}
	more, err := codec.Marshal(timings)
	if err != nil {
		panic(err) // a Timing is plain data
	}
	if len(h) == 0 {
		return more
	}
	return append(append(slices.Clip(h[:len(h)-1]), ','), more[1:]...)
}

// MarshalJSON returns the list.
func (h History) MarshalJSON() ([]byte, error) {
	if len(h) == 0 {
		return []byte("[]"), nil
	}
	return h, nil
}

// UnmarshalJSON keeps a list. What is not one is an error.
func (h *History) UnmarshalJSON(data []byte) error {
	*h = nil
	if data[0] != '[' { // null, or what is none: data is JSON
		var list []Timing
		return codec.Unmarshal(data, &list)
	}
	if len(bytes.TrimSpace(data[1:len(data)-1])) > 0 {
		*h = slices.Clone(data)
	}
	return nil
}
