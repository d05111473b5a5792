package pod

import (
	"io"

	"berth/internal/model"
	"berth/internal/pod/stdio"
)

// TermSize is the size of a terminal in characters.
type TermSize = stdio.Size

// ExecOptions is a command to run in a container, with its streams. A nil stream is not wanted. With TTY, output comes
// on Stdout alone and Resize, where it is not nil, changes the terminal's size.
type ExecOptions struct {
	Cmd    []string
	As     model.ExecAs
	TTY    bool
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Resize <-chan TermSize
}

// AttachOptions are the streams that are joined to a running container's own.
type AttachOptions = stdio.Client
