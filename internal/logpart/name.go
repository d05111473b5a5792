// Package logpart has the parts of a container's log: the files that its log was renamed to when it was rotated. Their
// names are those of a kubelet, so that a kubelet finds, compresses and removes them, and they are found here when a
// kubelet has rotated the log.
package logpart

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	// stamp follows the log's name and a dot. A kubelet's has no fraction of a second. This one always has: a kubelet
	// renames over a file that is there, and would remove a part of the same second.
	stamp = "20060102-150405.000000"
	// second is how such a time is read, with a fraction or without one.
	second = "20060102-150405"
	// compressed is the end of a part that a kubelet has compressed.
	compressed = ".gz"
)

var suffix = regexp.MustCompile(`^\.[0-9]{8}-[0-9]{6}(\.[0-9]+)?(\.gz)?$`)

// Name is the name of a part that is made at this time, in local time as a kubelet has it.
func Name(log string, at time.Time) string { return log + "." + at.Local().Format(stamp) }

// Next is the name of the part that is made next, at this time. names are those in the log's directory. The order of
// the parts is that of their names, so the name is a later one than those of all parts, though the clock was set back
// or summer time has ended: its time is then just after that of the newest part.
func Next(log string, names []string, at time.Time) string {
	name := Name(log, at)
	parts := Of(log, names)
	if len(parts) == 0 {
		return name
	}
	newest := plain(parts[len(parts)-1])
	if name > newest {
		return name
	}
	// The time is read without a time zone: a local one may come twice.
	last, err := time.Parse(second, newest[len(log)+1:])
	if err != nil {
		return name
	}
	if later := log + "." + last.Add(time.Microsecond).Format(stamp); later > newest {
		return later
	}
	return name
}

// Of returns those among the names in a directory that are parts of a log, from the oldest to the newest. A part that
// is being compressed is there once: a kubelet removes the first form itself.
func Of(log string, names []string) []string {
	var parts []string
	for _, name := range names {
		if rest, ok := strings.CutPrefix(name, log); ok && suffix.MatchString(rest) {
			parts = append(parts, name)
		}
	}
	slices.SortFunc(parts, func(a, b string) int { return cmp.Compare(plain(a), plain(b)) })
	return slices.CompactFunc(parts, func(a, b string) bool { return plain(a) == plain(b) })
}

// Compressed tells whether a part is compressed.
func Compressed(part string) bool { return strings.HasSuffix(part, compressed) }

// plain is the name that a part had before it was compressed.
func plain(part string) string { return strings.TrimSuffix(part, compressed) }
