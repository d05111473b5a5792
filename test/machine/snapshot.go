package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// snapshot is what the machine is like, by kind and name.
type snapshot map[string]map[string]string

// readers are what a snapshot is made of, by kind.
var readers = map[string]func() (map[string]string, error){
	"device": devices, "sysctl": sysctls, "cgroup": cgroups, "mount": mounts, "network namespace": networkNamespaces,
	"interface": interfaces, "address": addresses, "route": routes, "netfilter": netfilter, "loop device": loops,
	"module": modules, "file": files,
}

func take() (snapshot, error) {
	s := snapshot{}
	var errs []error
	for kind, read := range readers {
		items, err := read()
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", kind, err))
		}
		s[kind] = items
	}
	return s, errors.Join(errs...)
}

// difference is a thing that was not there before, is gone, or is another than it was. One of the texts is empty then;
// a thing of which there is nothing to say but that it exists has "there".
type difference struct{ kind, name, was, is string }

const there = "there"

func (d difference) String() string {
	switch {
	case d.was == "":
		if d.is == there {
			return fmt.Sprintf("%s %s was not there", d.kind, d.name)
		}
		return fmt.Sprintf("%s %s was not there: %s", d.kind, d.name, d.is)
	case d.is == "":
		return fmt.Sprintf("%s %s is gone", d.kind, d.name)
	}
	return fmt.Sprintf("%s %s was %s and is %s", d.kind, d.name, d.was, d.is)
}

// differences are sorted by kind and name.
func differences(before, after snapshot) []difference {
	var out []difference
	for _, kind := range slices.Sorted(maps.Keys(readers)) {
		names := map[string]bool{}
		for _, s := range []snapshot{before, after} {
			for name := range s[kind] {
				names[name] = true
			}
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			d := difference{kind, name, before[kind][name], after[kind][name]}
			if d.was == d.is {
				continue
			}
			// A sysctl comes with a module or an interface, and goes with it.
			if kind == "sysctl" && (d.was == "" || d.is == "") {
				continue
			}
			out = append(out, d)
		}
	}
	return out
}

// lines numbers texts of which there may be several alike.
func lines(texts []string) map[string]string {
	count := map[string]int{}
	for _, text := range texts {
		count[text]++
	}
	out := map[string]string{}
	for text, n := range count {
		out[text] = there
		if n > 1 {
			out[text] = fmt.Sprintf("there %d times", n)
		}
	}
	return out
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return s
}
