package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// Load reads a file over the defaults, puts overrides (nil: none) over both, and validates. An empty path
// is DefaultPath, which may be missing. An error names the file, and line and key or the flag.
func Load(path string, overrides *Overrides) (*Config, error) {
	explicit := path != ""
	if !explicit {
		path = DefaultPath
	}
	c := Default()
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !explicit:
	case err != nil:
		return nil, fmt.Errorf("configuration: %w", err)
	default:
		if err := c.decode(data); err != nil {
			return nil, located(err, path, data, nil)
		}
	}
	overrides.apply(c)
	if err := c.Validate(); err != nil {
		return nil, located(err, path, data, overrides)
	}
	return c, nil
}

// decode reads TOML over what c holds.
func (c *Config) decode(data []byte) error {
	return toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(c)
}

// located puts file and line, or the flag, before each thing that is wrong.
func located(err error, path string, data []byte, overrides *Overrides) error {
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) {
		var errs []error
		for i := range unknown.Errors {
			e := &unknown.Errors[i]
			line, _ := e.Position()
			errs = append(errs, fmt.Errorf("%s:%d: %s", path, line, unknownKey(strings.Join(e.Key(), "."))))
		}
		return errors.Join(errs...)
	}
	var decode *toml.DecodeError
	if errors.As(err, &decode) {
		line, column := decode.Position()
		what := strings.TrimPrefix(decode.Error(), "toml: ")
		if key := strings.Join(decode.Key(), "."); key != "" {
			return fmt.Errorf("%s:%d: %s: %s", path, line, key, what)
		}
		return fmt.Errorf("%s:%d:%d: %s", path, line, column, what)
	}
	lines := keyLines(data)
	var errs []error
	for _, e := range keyErrors(err) {
		var key *KeyError
		if !errors.As(e, &key) {
			errs = append(errs, e)
			continue
		}
		if flag, ok := overrides.flag(key.Key); ok {
			errs = append(errs, fmt.Errorf("flag --%s: %w", flag, e))
		} else if line, ok := lines[key.Key]; ok {
			errs = append(errs, fmt.Errorf("%s:%d: %w", path, line, e))
		} else {
			errs = append(errs, fmt.Errorf("configuration: %w", e))
		}
	}
	return errors.Join(errs...)
}

// keyErrors takes joined errors apart.
func keyErrors(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var out []error
	for _, e := range joined.Unwrap() {
		out = append(out, keyErrors(e)...)
	}
	return out
}

func unknownKey(key string) string {
	if near := nearest(key, keys()); near != "" {
		return fmt.Sprintf("%s: unknown key; %s is one", key, near)
	}
	return key + ": unknown key"
}

// nearest returns the candidate that a typing error makes of s, if there is one.
func nearest(s string, candidates []string) string {
	best, least := "", 3
	for _, c := range candidates {
		if d := distance(s, c); d < least {
			best, least = c, d
		}
	}
	return best
}

// distance counts the letters to add, drop or change (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}

// keyLines finds the line of each key in a file that parses.
func keyLines(data []byte) map[string]int {
	lines := map[string]int{}
	var p unstable.Parser
	p.Reset(data)
	var table []string
	for p.NextExpression() {
		e := p.Expression()
		var (
			names []string
			line  int
		)
		for it := e.Key(); it.Next(); {
			if line == 0 {
				line = p.Shape(it.Node().Raw).Start.Line
			}
			names = append(names, string(it.Node().Data))
		}
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = names
		case unstable.KeyValue:
			names = append(slices.Clone(table), names...)
		default:
			continue
		}
		lines[strings.Join(names, ".")] = line
	}
	return lines
}
