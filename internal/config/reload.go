package config

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// Merge is what a running berthd does with a configuration that was read anew: what it returns has the values of next
// where the tag reload allows that, and those of l elsewhere. changed are the keys that have another value than in l,
// as the file would have them; restart are those whose value in next counts from the next start of berthd on.
func (l *Loaded) Merge(next *Loaded) (merged *Loaded, changed, restart []string) {
	both := *l.Config
	merged = &Loaded{Config: &both, Files: next.Files, origins: maps.Clone(next.origins), flags: l.flags}
	target, from := reflect.ValueOf(merged.Config).Elem(), reflect.ValueOf(next.Config).Elem()
	for _, f := range fields() {
		if f.reload {
			target.FieldByIndex(f.index).Set(from.FieldByIndex(f.index))
			continue
		}
		delete(merged.origins, f.key)
		if o, ok := l.origins[f.key]; ok {
			merged.origins[f.key] = o
		}
	}
	both.Runtimes = next.Runtimes
	return merged, differences(l.Config, merged.Config), differences(merged.Config, next.Config)
}

// Sort divides what is wrong with next on this node: errors about keys that have another value than in l, and those
// about keys that have not, which are no reason against a reload.
func (l *Loaded) Sort(next *Loaded, wrong error) (fresh, known error) {
	if wrong == nil {
		return nil, nil
	}
	before := map[string]value{}
	for _, v := range l.values() {
		before[v.key] = v
	}
	unchanged := map[string]bool{}
	for _, v := range next.values() {
		old, ok := before[v.key]
		unchanged[v.key] = ok && same(old.held, v.held)
	}
	for _, err := range keyErrors(wrong) {
		var key *KeyError
		if errors.As(err, &key) && unchanged[key.Key] {
			known = errors.Join(known, next.Locate(err))
		} else {
			fresh = errors.Join(fresh, next.Locate(err))
		}
	}
	return fresh, known
}

// secret is the key whose value no log has: tokens and passwords of proxies are given to programs so.
const secret = "default_env"

// differences are the keys that have another value in b than in a, with the value in b, but for that of secret.
func differences(a, b *Config) []string {
	before := map[string]value{}
	for _, v := range a.values() {
		before[v.key] = v
	}
	var out []string
	for _, v := range b.values() {
		old, ok := before[v.key]
		if ok && same(old.held, v.held) || !ok && empty(v.held) {
			continue // or a key of a new runtime handler that says nothing
		}
		if v.name == secret {
			out = append(out, v.key)
		} else {
			out = append(out, fmt.Sprintf("%s = %s", v.key, text(v.held)))
		}
	}
	for _, handler := range slices.Sorted(maps.Keys(a.Runtimes)) {
		if _, ok := b.Runtimes[handler]; !ok {
			out = append(out, fmt.Sprintf("runtimes.%s is gone", bare(handler)))
		}
	}
	return out
}

// same tells whether two values are one. A list that is not given is as good as an empty one.
func same(a, b reflect.Value) bool {
	return a.Kind() == reflect.Slice && a.Len() == 0 && b.Len() == 0 || reflect.DeepEqual(a.Interface(), b.Interface())
}

func empty(v reflect.Value) bool {
	return v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0
}
