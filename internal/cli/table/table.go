package table

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"
)

// Format is how a list is printed.
type Format string

const (
	Table Format = ""
	Wide  Format = "wide"
	JSON  Format = "json"
	YAML  Format = "yaml"
)

// Formats are the values of -o.
var Formats = []string{"json", "yaml", "wide"}

// Set takes the value of -o; with String and Type it makes Format a flag.
func (f *Format) Set(text string) error {
	switch format := Format(text); format {
	case Wide, JSON, YAML:
		*f = format
		return nil
	case "table":
		*f = Table
		return nil
	}
	if format := Format(text); format.Template() {
		if _, err := format.parse(); err != nil {
			return err
		}
		*f = format
		return nil
	}
	return &unknownFormatError{text: text}
}

// unknownFormatError is a value of -o that is no format. Lists have names too.
type unknownFormatError struct {
	text string
	name bool
}

func (e *unknownFormatError) Error() string {
	name := ""
	if e.name {
		name = "name, "
	}
	return fmt.Sprintf("%q is not one of json, yaml, wide, table, %sjsonpath=TEMPLATE and go-template=TEMPLATE", e.text,
		name)
}

func (f *Format) String() string { return string(*f) }

// Type names the flag's kind in help.
func (f *Format) Type() string { return "format" }

// Structured says whether the format is for programs.
func (f Format) Structured() bool { return f == JSON || f == YAML || f.Template() }

// Column is one column of a table of T.
type Column[T any] struct {
	Title string
	Wide  bool // shown with -o wide only
	Value func(T) string
	Order func(a, b T) int // for sorting; nil: by the text of Value
}

// Print writes rows. As JSON and YAML they are a list of T, which is never null.
func Print[T any](w io.Writer, format Format, rows []T, columns []Column[T]) error {
	return write(w, format, rows, columns, true, gap)
}

// PrintDense is Print with less space between columns, for tables of many numbers.
func PrintDense[T any](w io.Writer, format Format, rows []T, columns []Column[T]) error {
	return write(w, format, rows, columns, true, denseGap)
}

// The spaces between two columns.
const (
	gap      = 3
	denseGap = 2
)

func write[T any](w io.Writer, format Format, rows []T, columns []Column[T], headers bool, gap int) error {
	if format.Structured() {
		if rows == nil {
			rows = []T{}
		}
		return Document(w, format, rows)
	}
	tw := tabwriter.NewWriter(w, 0, 8, gap, ' ', 0)
	var cells []string
	for _, column := range columns {
		if !column.Wide || format == Wide {
			cells = append(cells, column.Title)
		}
	}
	if headers {
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	for _, row := range rows {
		cells = cells[:0]
		for _, column := range columns {
			if !column.Wide || format == Wide {
				cells = append(cells, cell(column.Value(row)))
			}
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	return tw.Flush()
}

// cell is a value as tables show it.
func cell(value string) string {
	if value == "" {
		return "-"
	}
	return Printable(value)
}

// Printable keeps a text from breaking a line, and from speaking to the terminal: texts come from images and pods.
func Printable(text string) string {
	return strings.Map(printable, text)
}

func printable(r rune) rune {
	if r < 0x20 || steering(r) {
		return '?'
	}
	return r
}

// Sentence is a text of several lines as one that is printable.
func Sentence(text string) string { return Printable(strings.Join(strings.Fields(text), " ")) }

// Document writes one value as JSON or YAML, or as a template has it.
func Document(w io.Writer, format Format, value any) error {
	if format.Template() {
		return execute(w, format, value)
	}
	if format == YAML {
		var text bytes.Buffer // yaml.Marshal would refuse DEL and control characters of Unicode
		if err := encode(&text, value, ""); err != nil {
			return err
		}
		data, err := yaml.JSONToYAML(text.Bytes())
		if err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	}
	return encode(w, value, "  ")
}

// Line writes one value as JSON on a line of its own, for commands that go on printing.
func Line(w io.Writer, value any) error {
	return encode(w, value, "")
}

// Yes is the cell of a table that says that something holds, or nothing.
func Yes(holds bool) string {
	if holds {
		return "yes"
	}
	return ""
}
