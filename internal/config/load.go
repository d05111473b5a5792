package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"

	"berth/internal/tomlfile"
)

// Sources are what a configuration is read from.
type Sources struct {
	// File is read over the defaults. Empty: DefaultPath, which may be missing.
	File string
	// Dir is the directory whose *.toml files are read over File, in the order of their names. Empty: DropIns beside
	// File, which may be missing.
	Dir string
	// Overrides are put over all; nil: none.
	Overrides *Overrides
}

// Loaded is a configuration that is valid, and where each of its keys comes from. It is not changed any more.
type Loaded struct {
	*Config
	Files   []string // that were read, in their order
	origins map[string]origin
	flags   *Overrides
}

// origin is where a key was given last.
type origin struct {
	file  string
	line  int
	table bool // the header of a table, and no key
}

func (o origin) String() string { return fmt.Sprintf("%s:%d", o.file, o.line) }

// Load reads files over the defaults, puts overrides over both, and validates. An error names file, line and key, or
// the flag.
func Load(s Sources) (*Loaded, error) {
	path := s.File
	if path == "" {
		path = DefaultPath
	}
	l := &Loaded{Config: Default(), origins: map[string]origin{}, flags: s.Overrides}
	if err := l.read(path); errors.Is(err, fs.ErrNotExist) && s.File == "" {
		// The defaults hold.
	} else if err != nil {
		return nil, err
	}
	dropIns, err := s.dropIns(path)
	if err != nil {
		return nil, err
	}
	for _, file := range dropIns {
		if err := l.read(file); err != nil {
			return nil, err
		}
	}
	s.Overrides.apply(l.Config)
	for name, r := range l.Runtimes {
		if r.Type == "" {
			r.Type = RuntimeBuiltin
			l.Runtimes[name] = r
		}
	}
	if err := l.Validate(); err != nil {
		return nil, l.Locate(err)
	}
	return l, nil
}

// dropIns are the files that are read over the one at path. What editors and package managers leave beside them, hidden
// files and those with other endings, is not read.
func (s Sources) dropIns(path string) ([]string, error) {
	dir := s.Dir
	if dir == "" {
		dir = filepath.Join(filepath.Dir(path), DropIns)
	}
	entries, err := os.ReadDir(dir) // sorted by name
	if errors.Is(err, fs.ErrNotExist) && s.Dir == "" {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	var files []string
	for _, e := range entries {
		if name := e.Name(); !e.IsDir() && strings.HasSuffix(name, ".toml") && !strings.HasPrefix(name, ".") {
			files = append(files, filepath.Join(dir, name))
		}
	}
	return files, nil
}

// read reads a file over what l holds.
func (l *Loaded) read(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if err := tomlfile.Decode(data, l.Config); err != nil {
		return tomlfile.Located(err, path, unknownKey)
	}
	l.Files = append(l.Files, path)
	for key, o := range keyLines(data) {
		o.file = path
		l.origins[key] = o
	}
	return nil
}

// Locate puts before each *KeyError of those that err joins the file and line that the key comes from, or its flag. Of
// a key that is given nowhere it is the line of the table that it belongs in.
func (l *Loaded) Locate(err error) error {
	if err == nil {
		return nil
	}
	var errs []error
	for _, e := range keyErrors(err) {
		var key *KeyError
		if !errors.As(e, &key) {
			errs = append(errs, e)
			continue
		}
		if flag, ok := l.flags.flag(key.Key); ok {
			errs = append(errs, fmt.Errorf("flag --%s: %w", flag, e))
		} else if o, ok := l.origin(key.Key, true); ok {
			errs = append(errs, fmt.Errorf("%s: %w", o, e))
		} else {
			errs = append(errs, fmt.Errorf("configuration: %w", e))
		}
	}
	return errors.Join(errs...)
}

// origin finds where a key was given: by itself, or in a table that was given inline. With tables the header of its
// table will do.
func (l *Loaded) origin(key string, tables bool) (origin, bool) {
	for at := key; at != ""; at = at[:max(strings.LastIndexByte(at, '.'), 0)] {
		if o, ok := l.origins[at]; ok && (tables || !o.table) {
			return o, true
		}
	}
	return origin{}, false
}

// first finds where a key that is a table itself begins, such as the options of a shim: at its header, or at the first
// of its keys, in the last of the files.
func (l *Loaded) first(key string) (found origin, ok bool) {
	for at, o := range l.origins {
		if at != key && !strings.HasPrefix(at, key+".") {
			continue
		}
		later := slices.Index(l.Files, o.file) - slices.Index(l.Files, found.file)
		if !ok || later > 0 || later == 0 && o.line < found.line {
			found, ok = o, true
		}
	}
	return found, ok
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
		return fmt.Sprintf("%s: unknown key: did you mean %s?", key, near)
	}
	return key + ": unknown key"
}

// nearest returns the candidate that s is a typing error of, if there is one: at most two letters differ, and less than
// half of them.
func nearest(s string, candidates []string) string {
	best, least := "", min(3, (len(s)+1)/2)
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

// keyLines finds the lines of the keys and of the headers of tables in a file that parses.
func keyLines(data []byte) map[string]origin {
	lines := map[string]origin{}
	var p unstable.Parser
	p.Reset(data)
	var table []string
	for p.NextExpression() {
		e := p.Expression()
		var names []string
		o := origin{table: e.Kind != unstable.KeyValue}
		for it := e.Key(); it.Next(); {
			if o.line == 0 {
				o.line = p.Shape(it.Node().Raw).Start.Line
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
		lines[strings.Join(names, ".")] = o
	}
	return lines
}
