package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

// A bill is the bill of materials: the programs, and what each of them is made of.
type bill struct {
	components map[string]cyclonedx.Component
	uses       map[string][]string // of programs, by reference
	terms      *terms
}

// materials is the bill of materials of the programs of the tree, as CycloneDX has it in JSON. Modules of Go are those
// that the linker has recorded in each program. Libraries of C are in the programs that are built with cgo; no
// program records them. The licenses of all are written into the tree.
func materials(o *options) ([]byte, error) {
	terms, err := newTerms()
	if err != nil {
		return nil, err
	}
	b := &bill{components: map[string]cyclonedx.Component{}, uses: map[string][]string{}, terms: terms}
	programs, err := filepath.Glob(filepath.Join(o.root, "usr/bin/*"))
	if err != nil {
		return nil, err
	}
	for _, path := range programs {
		if err := b.program(path, o); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := terms.write(o.root); err != nil {
		return nil, err
	}
	product := cyclonedx.Component{
		BOMRef: "berth", Type: cyclonedx.ComponentTypeApplication, Name: "berth", Version: o.version,
		PackageURL: packageURL("generic/berth", o.version), Licenses: &cyclonedx.Licenses{
			{License: &cyclonedx.License{ID: "Apache-2.0"}},
		},
	}
	out := cyclonedx.NewBOM()
	out.Metadata = &cyclonedx.Metadata{Timestamp: o.time.Format(time.RFC3339), Component: &product}
	b.uses["berth"] = sortedKeys(b.uses)
	components, uses := []cyclonedx.Component{}, []cyclonedx.Dependency{}
	for _, ref := range sortedKeys(b.components) {
		components = append(components, b.components[ref])
	}
	for _, ref := range sortedKeys(b.uses) {
		slices.Sort(b.uses[ref])
		list := slices.Compact(b.uses[ref])
		uses = append(uses, cyclonedx.Dependency{Ref: ref, Dependencies: &list})
	}
	out.Components, out.Dependencies = &components, &uses
	var text bytes.Buffer
	encoder := cyclonedx.NewBOMEncoder(&text, cyclonedx.BOMFileFormatJSON).SetPretty(true)
	err = encoder.EncodeVersion(out, cyclonedx.SpecVersion1_6)
	return text.Bytes(), err
}

func (b *bill) program(path string, o *options) error {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	name := filepath.Base(path)
	program := cyclonedx.Component{
		BOMRef: "program:" + name, Type: cyclonedx.ComponentTypeApplication, Name: name, Version: o.version,
		Hashes: &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
	}
	b.components[program.BOMRef] = program
	use := func(c cyclonedx.Component) {
		c.BOMRef, c.Type = c.PackageURL, cyclonedx.ComponentTypeLibrary
		b.components[c.BOMRef] = c
		b.uses[program.BOMRef] = append(b.uses[program.BOMRef], c.BOMRef)
	}
	goVersion := strings.TrimPrefix(info.GoVersion, "go")
	licenses, err := b.terms.standard(goVersion)
	if err != nil {
		return err
	}
	use(cyclonedx.Component{
		Name: "std", Version: goVersion, PackageURL: packageURL("golang/std", goVersion), Licenses: licenses,
	})
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		licenses, err := b.terms.module(module.Path, module.Version)
		if err != nil {
			return err
		}
		use(cyclonedx.Component{
			Name: module.Path, Version: module.Version, PackageURL: packageURL("golang/"+module.Path, module.Version),
			Licenses:   licenses,
			Properties: &[]cyclonedx.Property{{Name: "go.sum", Value: module.Sum}},
		})
	}
	if !slices.Contains(info.Settings, debug.BuildSetting{Key: "CGO_ENABLED", Value: "1"}) {
		return nil
	}
	if len(o.libraries) == 0 {
		return errors.New("it has C, and -c-libraries does not say which libraries")
	}
	for _, library := range o.libraries {
		name, version, found := strings.Cut(library, "=")
		if !found {
			return fmt.Errorf("-c-libraries: %q is not PACKAGE=VERSION", library)
		}
		if err := b.terms.debian(name, version); err != nil {
			return err
		}
		use(cyclonedx.Component{
			Name: name, Version: version, PackageURL: packageURL("deb/debian/"+name, version),
		})
	}
	return nil
}

// packageURL is the name of a package as github.com/package-url/purl-spec has it.
func packageURL(name, version string) string {
	return "pkg:" + name + "@" + strings.NewReplacer("+", "%2B", ":", "%3A").Replace(version)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
