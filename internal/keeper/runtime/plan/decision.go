package plan

import (
	"fmt"
	"reflect"
	"sync"
)

// The stage ignores no field: fields.go has a decision about each field of the types that describe a container and a
// process. A field that is set and has no decision counts as one that the stage does not support.

// fate says how the stage treats a field that is set.
type fate uint8

const (
	undecided fate = iota
	// byStage: the stage supports the field, or needs it for another field.
	byStage
	// byLibrary: libcontainer's own code (its checks, its cgroup managers, its state) supports the field, for containers
	// of the stage too.
	byLibrary
	// byConfig: specconv makes a field of configs.Config of it, about which there is a decision of its own.
	byConfig
	// byContainer: an exec finds it done in the container that it joins.
	byContainer
	// byProcess: the process says it itself, and what a process says counts before what its container says.
	byProcess
	// declined: the stage does not do it, libcontainer does.
	declined
	// refused: neither does it, and a container or process that asks for it is not started.
	refused
	// unused: it asks for nothing here.
	unused
)

// rule is the decision about a field, for a container's start and for an exec.
type rule struct {
	start, exec fate
	// what the field is, in words, where it is declined or refused; why it is unused.
	what string
}

func rules(start, exec fate) rule { return rule{start: start, exec: exec} }

func declines(what string) rule { return rule{start: declined, exec: declined, what: what} }

// startDeclines is for what an exec finds done in the container.
func startDeclines(what string) rule { return rule{start: declined, exec: byContainer, what: what} }

func refuses(what string) rule { return rule{start: refused, exec: refused, what: what} }

func ignores(why string) rule { return rule{start: unused, exec: unused, what: why} }

// search looks for fields that are set and have one of some fates.
type search func() map[reflect.Type][]look

// look is a field to look at.
type look struct {
	index int
	what  string // it is found if it is set; empty: only what is in it matters
}

var (
	startDeclined = newSearch(func(r rule) bool { return r.start == declined || r.start == undecided })
	execDeclined  = newSearch(func(r rule) bool { return r.exec == declined || r.exec == undecided })
	startRefused  = newSearch(func(r rule) bool { return r.start == refused })
	execRefused   = newSearch(func(r rule) bool { return r.exec == refused })
)

// newSearch prepares, when it is first needed, what has to be looked at in each type: in most of them little.
func newSearch(wanted func(rule) bool) search {
	return sync.OnceValue(func() map[reflect.Type][]look {
		all := map[reflect.Type][]look{}
		var prepare func(t reflect.Type) []look
		prepare = func(t reflect.Type) []look {
			if list, ok := all[t]; ok {
				return list
			}
			all[t] = nil
			for i := range t.NumField() {
				f := t.Field(i)
				if !f.IsExported() {
					continue
				}
				r := fields[t][f.Name]
				switch inner := structIn(f.Type); {
				case wanted(r) && r.what == "":
					all[t] = append(all[t], look{i, fmt.Sprintf("%s.%s, which this version does not know", t, f.Name)})
				case wanted(r):
					all[t] = append(all[t], look{i, r.what})
				case fields[inner] != nil && len(prepare(inner)) > 0:
					all[t] = append(all[t], look{index: i})
				}
			}
			return all[t]
		}
		for t := range fields {
			prepare(t)
		}
		return all
	})
}

// find returns the first wanted field in a struct of a type that fields has, or in a pointer to one; empty: there is
// none.
func (s search) find(v any) string { return s.in(s(), reflect.ValueOf(v)) }

func (s search) in(all map[reflect.Type][]look, v reflect.Value) string {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return s.in(all, v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			if found := s.in(all, v.Index(i)); found != "" {
				return found
			}
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			if found := s.in(all, v.MapIndex(key)); found != "" {
				return found
			}
		}
	case reflect.Struct:
		for _, l := range all[v.Type()] {
			field := v.Field(l.index)
			if l.what == "" {
				if found := s.in(all, field); found != "" {
					return found
				}
			} else if isSet(field) {
				return l.what
			}
		}
	}
	return ""
}

// isSet is false for an empty list as for none.
func isSet(v reflect.Value) bool {
	if v.Kind() == reflect.Slice || v.Kind() == reflect.Map {
		return v.Len() > 0
	}
	return !v.IsZero()
}

// structIn is the type of the structs that a field holds; nil: none.
func structIn(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	return t
}

// ExecDeclines returns the first thing in a specification, a configuration or a process that the stage does not do for
// execs, in words; empty: there is none.
func ExecDeclines(v any) string { return execDeclined.find(v) }
