package model

import "fmt"

// UnverifiedError says that an image is not pulled because an image verifier of the node rejected it, or could not be
// asked.
type UnverifiedError struct {
	Digest   string // what the image's name stands for
	Verifier string // the name of its file; empty: none could be run
	Rejected bool   // the verifier looked at the image and rejected it
	Reason   string // one line
}

func (e *UnverifiedError) Error() string {
	what := e.Digest + " is not verified"
	switch {
	case e.Rejected:
		return fmt.Sprintf("%s: the image verifier %q rejected it: %s", what, e.Verifier, e.Reason)
	case e.Verifier != "":
		return fmt.Sprintf("%s: the image verifier %q failed: %s", what, e.Verifier, e.Reason)
	}
	return what + ": " + e.Reason
}
