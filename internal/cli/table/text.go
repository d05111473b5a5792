package table

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Text returns a writer of text for people: errors, notes and questions. Names of files, words of registries and other
// text of strangers is in them, and must not steer the terminal. Control characters become question marks, but for the
// ends of lines and tabs. Each Write has whole characters, as those of fmt have.
func Text(w io.Writer) io.Writer { return text{w} }

type text struct{ w io.Writer }

func (t text) Write(p []byte) (int, error) {
	if _, err := io.WriteString(t.w, Lines(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Lines replaces the control characters of text that may have several lines and columns.
func Lines(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		return printable(r)
	}, text)
}

// onTerminal returns text as a program gets it, and without control characters where w is a terminal.
func onTerminal(w io.Writer, text []byte) []byte {
	if file, ok := w.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return []byte(Lines(string(text)))
	}
	return text
}

// encode writes a value as JSON. The package for that escapes the control characters of ASCII, but not DEL and those of
// Unicode, which steer terminals, too.
func encode(w io.Writer, value any, indent string) error {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	if err := encoder.Encode(value); err != nil {
		return err
	}
	plain := out.Bytes()
	if bytes.IndexFunc(plain, steering) < 0 {
		_, err := w.Write(plain)
		return err
	}
	var escaped strings.Builder
	for _, r := range string(plain) {
		if steering(r) {
			fmt.Fprintf(&escaped, "\\u%04x", r)
		} else {
			escaped.WriteRune(r)
		}
	}
	_, err := io.WriteString(w, escaped.String())
	return err
}

// steering are the control characters that JSON may have as they are.
func steering(r rune) bool { return r >= 0x7f && r < 0xa0 }
