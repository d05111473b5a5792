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
	// compressed is the end of a part that a kubelet has compressed.
	compressed = ".gz"
)

var suffix = regexp.MustCompile(`^\.[0-9]{8}-[0-9]{6}(\.[0-9]+)?(\.gz)?$`)

// Name is the name of a part that is made at this time, in local time as a kubelet has it.
func Name(log string, at time.Time) string { return log + "." + at.Local().Format(stamp) }

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
