package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"
	"golang.org/x/mod/module"
)

// terms are the licenses of what the programs are made of, by their texts: many components have the same.
type terms struct {
	components map[string][]string // by text: "NAME VERSION"
	modules    string              // Go's module cache, in which each module has its license
	goroot     string
	classifier *classifier.Classifier // of the texts of licenses
}

func newTerms() (*terms, error) {
	out, err := exec.Command("go", "env", "GOMODCACHE", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	lines := strings.Fields(string(out))
	if len(lines) != 2 {
		return nil, fmt.Errorf("go env says %q", out)
	}
	known, err := assets.DefaultClassifier()
	if err != nil {
		return nil, err
	}
	return &terms{components: map[string][]string{}, modules: lines[0], goroot: lines[1], classifier: known}, nil
}

// module records the license of a module of Go, and returns the names that SPDX has for it.
func (t *terms) module(path, version string) (*cyclonedx.Licenses, error) {
	escaped, err := module.EscapePath(path)
	if err != nil {
		return nil, err
	}
	escapedVersion, err := module.EscapeVersion(version)
	if err != nil {
		return nil, err
	}
	return t.directory(path, version, filepath.Join(t.modules, filepath.FromSlash(escaped)+"@"+escapedVersion))
}

// standard is module for Go's own packages.
func (t *terms) standard(version string) (*cyclonedx.Licenses, error) {
	return t.directory("Go", version, t.goroot)
}

// debian is module for a library of C. Debian has the texts of a package in one file.
func (t *terms) debian(name, version string) error {
	text, err := os.ReadFile(filepath.Join("/usr/share/doc", name, "copyright"))
	if err != nil {
		return fmt.Errorf("the license of the package %s: %w", name, err)
	}
	t.add(name, version, string(text))
	return nil
}

// names of files that have a license, or what it wants to be passed on.
var licenseFiles = []string{"license", "licence", "unlicense", "copying", "notice", "patents", "copyright"}

func (t *terms) directory(name, version, dir string) (*cyclonedx.Licenses, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("the license of %s %s: %w (go mod download)", name, version, err)
	}
	var texts, ids []string
	for _, e := range entries {
		stem, extension, _ := strings.Cut(strings.ToLower(e.Name()), ".")
		if !e.Type().IsRegular() || !slices.Contains([]string{"", "md", "txt", "docs", "code"}, extension) ||
			!slices.ContainsFunc(licenseFiles, func(p string) bool { return strings.HasPrefix(stem, p) }) {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		texts = append(texts, string(data))
		for _, match := range t.classifier.Match(data).Matches {
			if match.MatchType == "License" {
				ids = append(ids, match.Name)
			}
		}
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf("%s %s has no license that is known, in %s", name, version, dir)
	}
	t.add(name, version, strings.Join(texts, "\n"))
	slices.Sort(ids)
	var list cyclonedx.Licenses
	for _, id := range slices.Compact(ids) {
		list = append(list, cyclonedx.LicenseChoice{License: &cyclonedx.License{ID: id}})
	}
	return &list, nil
}

func (t *terms) add(name, version, text string) {
	text = strings.TrimRight(strings.ReplaceAll(text, "\r\n", "\n"), "\n") + "\n"
	if one := name + " " + version; !slices.Contains(t.components[text], one) {
		t.components[text] = append(t.components[text], one)
	}
}

// write writes the file that Debian wants of each package: who has which rights in what is in it.
func (t *terms) write(root string) error {
	dir := filepath.Join(root, "usr/share/doc/berth")
	own, err := os.ReadFile(filepath.Join(dir, "LICENSE"))
	if err != nil {
		return err
	}
	const line = "\n------------------------------------------------------------------------------\n\n"
	var out strings.Builder
	out.WriteString("Berth is under this license:\n\n" + string(own))
	texts := slices.SortedFunc(func(yield func(string) bool) {
		for text := range t.components {
			if !yield(text) {
				return
			}
		}
	}, func(a, b string) int {
		return strings.Compare(slices.Min(t.components[a]), slices.Min(t.components[b]))
	})
	for _, text := range texts {
		list := slices.Sorted(slices.Values(t.components[text]))
		out.WriteString(line + "Its programs contain, under the license below:\n\n  " + strings.Join(list, "\n  ") + "\n\n" + text)
	}
	return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "copyright"), []byte(out.String()), 0o644))
}
