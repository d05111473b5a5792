package tomlfile

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// Decode reads the text of a file over what into holds. Located makes its errors readable.
func Decode(data []byte, into any) error {
	return toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(into)
}

// Located puts file and line before each thing for which Decode has failed. unknown words an unknown key; nil: the key
// and that it is unknown.
func Located(err error, path string, unknown func(key string) string) error {
	if unknown == nil {
		unknown = func(key string) string { return key + ": unknown key" }
	}
	var strict *toml.StrictMissingError
	if errors.As(err, &strict) {
		var errs []error
		for i := range strict.Errors {
			e := &strict.Errors[i]
			line, _ := e.Position()
			errs = append(errs, fmt.Errorf("%s:%d: %s", path, line, unknown(strings.Join(e.Key(), "."))))
		}
		return errors.Join(errs...)
	}
	var decode *toml.DecodeError
	if errors.As(err, &decode) {
		line, column := decode.Position()
		what := plainType(strings.TrimPrefix(decode.Error(), "toml: "))
		if key := strings.Join(decode.Key(), "."); key != "" {
			return fmt.Errorf("%s:%d: %s: %s", path, line, key, what)
		}
		return fmt.Errorf("%s:%d:%d: %s", path, line, column, what)
	}
	return fmt.Errorf("%s: %w", path, err)
}

// mismatch is the library's error for a value of another type than its key has.
var mismatch = regexp.MustCompile(`^cannot decode TOML (\w+) into .* of type (\S+)$`)

// kinds are Go's types in TOML's words.
var kinds = map[string]string{
	"string": "a string in quotes", "bool": "true or false", "*bool": "true or false", "int": "a whole number",
	"int64": "a whole number", "uint64": "a whole number", "uint32": "a whole number", "float64": "a number",
	"[]string": "a list of strings", "map[string]string": "a table of strings",
}

// plainType says in TOML's words what mismatch says in Go's.
func plainType(text string) string {
	found := mismatch.FindStringSubmatch(text)
	if found == nil {
		return text
	}
	want := kinds[found[2]]
	switch {
	case want != "":
	case strings.HasPrefix(found[2], "[]"):
		want = "a list"
	case strings.HasSuffix(found[2], ".Duration"):
		want = `a duration in quotes, such as "30s"`
	default:
		want = "a table"
	}
	given := found[1]
	article := "a"
	if strings.ContainsRune("aeiou", rune(given[0])) {
		article = "an"
	}
	return fmt.Sprintf("it is %s %s, and has to be %s", article, given, want)
}
