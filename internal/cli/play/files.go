package play

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"berth/internal/manifest"
)

// extensions are those of files with manifests.
var extensions = []string{".yaml", ".yml", ".json"}

// IsManifest says whether an argument names a manifest and not an image.
func IsManifest(name string) bool {
	if name == "-" || slices.Contains(extensions, filepath.Ext(name)) {
		return true
	}
	_, err := os.Stat(name)
	return err == nil
}

// Read reads the documents of files. "-" is standard input, and a directory stands for the files in it that kubectl
// would take: *.yaml, *.yml and *.json, in the order of their names.
func Read(names []string, in io.Reader, options manifest.Options) (*manifest.Documents, error) {
	var files []manifest.File
	for _, name := range names {
		if name == "-" {
			if slices.ContainsFunc(files, func(f manifest.File) bool { return f.In == in }) {
				return nil, errors.New("standard input is given twice")
			}
			files = append(files, manifest.File{Name: "standard input", In: in})
			continue
		}
		paths, err := expand(name)
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			file, err := os.Open(path)
			if err != nil {
				return nil, err
			}
			defer file.Close()
			files = append(files, manifest.File{Name: path, In: file})
		}
	}
	return manifest.DecodeFiles(files, options)
}

// expand returns the files of a directory, or the name itself.
func expand(name string) ([]string, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{name}, nil
	}
	files, err := Files(name)
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("directory %s has no file *.yaml, *.yml or *.json", name)
	}
	var paths []string
	for _, file := range files {
		paths = append(paths, filepath.Join(name, file))
	}
	return paths, nil
}

// Files are the names of the manifests in a directory, sorted. What begins with a dot is none, as for a kubelet:
// editors keep their own files under such names.
func Files(directory string) ([]string, error) {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if !entry.IsDir() && IsFile(entry.Name()) {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// IsFile says whether a name in a directory is one of a manifest.
func IsFile(name string) bool {
	return name[0] != '.' && slices.Contains(extensions, filepath.Ext(name))
}
