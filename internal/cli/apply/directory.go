package apply

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"berth/internal/cli/play"
	"berth/internal/manifest"
)

// directory reads the manifests of a directory again and again.
type directory struct {
	path    string
	options manifest.Options
	good    map[string][]byte // what each file held when it was right last, by its name
	last    map[string][]byte // what the files held when they were read last
	reading *reading          // of last
}

// reading is what the files of a directory describe.
type reading struct {
	documents *manifest.Documents
	wrong     map[string]error // by the name of the file
	// frozen are the wrong files of which nothing is among documents. The pods that they described before stay.
	frozen map[string]bool
}

// read reads the directory. changed is false where it holds what it held before. A file that is wrong is taken as it
// was when it was right last, so that the pods of this file and those that refer to its ConfigMaps stay as they are.
func (d *directory) read() (r *reading, changed bool, err error) {
	contents, unreadable, err := d.contents()
	if err != nil {
		return nil, false, err
	}
	if d.reading != nil && len(unreadable) == 0 && len(d.reading.wrong) == 0 && same(contents, d.last) {
		return d.reading, false, nil
	}
	r = &reading{wrong: unreadable, frozen: map[string]bool{}}
	use := maps.Clone(contents)
	for name := range unreadable {
		if good, ok := d.good[name]; ok {
			use[name] = good
		}
	}
	for {
		var files []manifest.File
		for _, name := range slices.Sorted(maps.Keys(use)) {
			files = append(files, manifest.File{Name: name, In: bytes.NewReader(use[name])})
		}
		if r.documents, err = manifest.DecodeFiles(files, d.options); err == nil {
			break
		}
		var wrong *manifest.FileError
		if !errors.As(err, &wrong) {
			return nil, false, err
		}
		name := wrong.File
		if r.wrong[name] == nil {
			r.wrong[name] = wrong.Err
		}
		if good, ok := d.good[name]; ok && !bytes.Equal(good, use[name]) {
			use[name] = good
		} else {
			delete(use, name)
		}
	}
	good := map[string][]byte{}
	for name := range r.wrong {
		if _, used := use[name]; !used {
			r.frozen[name] = true
		}
		if before, ok := d.good[name]; ok {
			good[name] = before
		}
	}
	for name, content := range contents {
		if r.wrong[name] == nil {
			good[name] = content
		}
	}
	d.good, d.last, d.reading = good, contents, r
	return r, true, nil
}

// contents are what the files of the directory hold, by their names, and why some cannot be read.
func (d *directory) contents() (contents map[string][]byte, unreadable map[string]error, err error) {
	names, err := play.Files(d.path)
	if err != nil {
		return nil, nil, err
	}
	contents, unreadable = map[string][]byte{}, map[string]error{}
	for _, name := range names {
		if !utf8.ValidString(name) { // annotations of pods have it, and messages of gRPC cannot
			unreadable[name] = fmt.Errorf("the name %q is not UTF-8: rename the file", name)
			continue
		}
		path := filepath.Join(d.path, name)
		info, err := os.Stat(path) // through symbolic links, such as those of a ConfigMap's volume
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue // removed meanwhile, or a link that leads nowhere
		case err == nil && info.IsDir():
			continue
		case err == nil && !info.Mode().IsRegular():
			err = errors.New("it is not a regular file")
		case err == nil:
			contents[name], err = os.ReadFile(path)
		}
		if err != nil {
			delete(contents, name)
			unreadable[name] = err
		}
	}
	return contents, unreadable, nil
}

func same(a, b map[string][]byte) bool { return maps.EqualFunc(a, b, bytes.Equal) }
