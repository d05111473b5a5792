package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// value is a key of a configuration with what it holds, which may be a key of a runtime handler.
type value struct {
	key   string // runtimes.crun.path
	table string // runtimes.crun, as a header has it; empty: none
	name  string // path
	held  reflect.Value
}

// values are all keys of a configuration: those outside of tables first, then table by table, and runtime handlers by
// their names last.
func (c *Config) values() []value {
	var out []value
	all := reflect.ValueOf(c).Elem()
	for _, f := range fields() {
		table, name, found := strings.Cut(f.key, ".")
		if !found {
			table, name = "", f.key
		}
		out = append(out, value{key: f.key, table: table, name: name, held: all.FieldByIndex(f.index)})
	}
	slices.SortStableFunc(out, func(a, b value) int {
		return min(len(a.table), 1) - min(len(b.table), 1)
	})
	for _, handler := range slices.Sorted(maps.Keys(c.Runtimes)) {
		r := reflect.ValueOf(c.Runtimes[handler])
		for i := range r.NumField() {
			name := r.Type().Field(i).Tag.Get("toml")
			out = append(out, value{
				key: "runtimes." + handler + "." + name, table: "runtimes." + bare(handler),
				name: name, held: r.Field(i),
			})
		}
	}
	return out
}

var bareKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// bare is a key as TOML wants it: quoted where it is not of letters, digits, _ and - alone.
func bare(key string) string {
	if bareKey.MatchString(key) {
		return key
	}
	return text(reflect.ValueOf(key))
}

// text is a value as TOML has it. Strings, lists of them and numbers are the same there as in JSON.
func text(v reflect.Value) string {
	for v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if v.Kind() == reflect.Map { // of a shim's options
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		var pairs []string
		for _, k := range keys {
			pairs = append(pairs, bare(k.String())+" = "+text(v.MapIndex(k)))
		}
		return "{" + strings.Join(pairs, ", ") + "}"
	}
	if v.Kind() == reflect.Slice && v.IsNil() {
		return "[]"
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v.Interface()); err != nil {
		// A test encodes all types.
		panic(fmt.Sprintf("a value of the configuration has the type %s: %v", v.Type(), err))
	}
	// DEL is the one character that JSON leaves as it is and TOML does not.
	return strings.ReplaceAll(strings.TrimSuffix(b.String(), "\n"), "\x7f", `\u007f`)
}

// Dump writes the configuration as a file that would give it. A comment after each key says where its value comes from:
// file and line, flag or default.
func (l *Loaded) Dump(w io.Writer) error {
	var b strings.Builder
	files := "none"
	if len(l.Files) > 0 {
		files = strings.Join(l.Files, ", ")
	}
	fmt.Fprintf(&b, "# Files: %s\n", files)
	table := ""
	for _, v := range l.values() {
		if v.table != table {
			table = v.table
			fmt.Fprintf(&b, "\n[%s]\n", table)
		}
		fmt.Fprintf(&b, "%s = %s # %s\n", v.name, text(v.held), l.from(v.key))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// from says where a key's value comes from.
func (l *Loaded) from(key string) string {
	if flag, ok := l.flags.flag(key); ok {
		return "flag --" + flag
	}
	if o, ok := l.origin(key, false); ok {
		return o.String()
	}
	if o, ok := l.first(key); ok {
		return o.String()
	}
	return "default"
}
