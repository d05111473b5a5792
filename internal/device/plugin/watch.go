package plugin

import (
	"path/filepath"
	"slices"
)

// directories are those in which nodes of a resource may come and go: of each pattern the directory
// that it is in and all that a part of it matches, or the nearest one that there is.
func (v *inventory) directories() []string {
	patterns := slices.Clone(v.Nodes)
	for _, group := range v.Groups {
		patterns = append(patterns, group...)
	}
	for _, u := range v.seen {
		patterns = append(patterns, u.nodes...) // of CDI devices, and the same ones again
	}
	if v.CDI != "" {
		for _, dir := range v.registry.Dirs() {
			patterns = append(patterns, filepath.Join(dir, "*.json"))
		}
	}
	var out []string
	for _, pattern := range patterns {
		for dir := filepath.Dir(pattern); ; dir = filepath.Dir(dir) {
			matches := []string{dir}
			if isPattern(dir) {
				matches, _ = filepath.Glob(dir)
			} else if !exists(dir) {
				matches = nil
			}
			for _, match := range matches {
				if !slices.Contains(out, match) {
					out = append(out, match)
				}
			}
			if dir == "/" || len(matches) > 0 && !isPattern(dir) {
				break
			}
		}
	}
	return out
}
