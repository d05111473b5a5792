package table

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/template"

	"k8s.io/client-go/util/jsonpath"
)

// Templates are the beginnings of the values of -o that take a template, as kubectl has them.
var Templates = []string{jsonPath, goTemplate}

const (
	jsonPath   = "jsonpath="
	goTemplate = "go-template="
)

// executor is what executes a template on a value of maps, lists, strings, numbers and booleans.
type executor interface {
	Execute(w io.Writer, data any) error
}

// Template says whether the format is one.
func (f Format) Template() bool {
	return strings.HasPrefix(string(f), jsonPath) || strings.HasPrefix(string(f), goTemplate)
}

// parse reads the template of a format.
func (f Format) parse() (executor, error) {
	if text, ok := strings.CutPrefix(string(f), goTemplate); ok {
		if text == "" {
			return nil, errors.New("go-template= is followed by a template, such as '{{range .}}{{.name}} {{end}}'")
		}
		return template.New("-o").Funcs(template.FuncMap{"json": toJSON}).Parse(text)
	}
	text := strings.TrimPrefix(string(f), jsonPath)
	if text == "" {
		return nil, errors.New("jsonpath= is followed by a template, such as '{[*].name}'")
	}
	if !strings.Contains(text, "{") { // a path alone, which kubectl takes too
		if text[0] != '[' {
			text = "." + strings.TrimPrefix(text, ".")
		}
		text = "{" + text + "}"
	}
	path := jsonpath.New("-o").AllowMissingKeys(true)
	return jsonExecutor{path}, path.Parse(text)
}

type jsonExecutor struct{ path *jsonpath.JSONPath }

func (e jsonExecutor) Execute(w io.Writer, data any) error { return e.path.Execute(w, data) }

func toJSON(value any) (string, error) {
	data, err := json.Marshal(value)
	return string(data), err
}

// Decode reads a document of JSON of whatever form, to print it again. Numbers stay as they are written: a float has
// too few digits for a limit that is none, 2^64-1.
func Decode(text []byte, value any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(value); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more follows the document")
	}
	return nil
}

// execute writes what a template makes of the JSON of a value, with a newline at the end.
func execute(w io.Writer, format Format, value any) error {
	e, err := format.parse()
	if err != nil {
		return err
	}
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	var data any
	if err := Decode(text, &data); err != nil {
		return err
	}
	var out bytes.Buffer
	if err := e.Execute(&out, numbers(data)); err != nil {
		return fmt.Errorf("-o %s: %w", format, err)
	}
	if b := out.Bytes(); len(b) > 0 && b[len(b)-1] != '\n' {
		out.WriteByte('\n')
	}
	_, err = w.Write(onTerminal(w, out.Bytes()))
	return err
}

// numbers replaces the numbers of a document by integers where they are whole: a float would be printed as 1e+06.
func numbers(data any) any {
	switch data := data.(type) {
	case json.Number:
		if n, err := data.Int64(); err == nil {
			return n
		}
		if n, err := strconv.ParseUint(data.String(), 10, 64); err == nil {
			return n
		}
		if f, err := data.Float64(); err == nil {
			return f
		}
		return data.String()
	case []any:
		for i := range data {
			data[i] = numbers(data[i])
		}
	case map[string]any:
		for key := range data {
			data[key] = numbers(data[key])
		}
	}
	return data
}
