package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAWrongTypeIsToldInTheFilesWords: neither Go's types nor the names of structs are in the error.
func TestAWrongTypeIsToldInTheFilesWords(t *testing.T) {
	for text, want := range map[string]string{
		"root = 5":                                ":1: root: it is an integer, and has to be a string in quotes",
		"[image]\npinned = \"x\"":                 ":2: image.pinned: it is a string, and has to be a list of strings",
		"[image]\nmax_concurrent_downloads=1.5":   "_downloads: it is a float, and has to be a whole number",
		"[image]\nmax_concurrent_downloads=\"4\"": "_downloads: it is a string, and has to be a whole number",
		"image = 1":                               "image: it is an integer, and has to be a table",
		"[runtimes.x]\ntype = true":               ":2: runtimes.x.type: it is a boolean, and has to be a string in quotes",
	} {
		path := filepath.Join(t.TempDir(), "config.toml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(Sources{File: path})
		if err == nil || !strings.HasSuffix(err.Error(), want) || strings.Contains(err.Error(), "config.") &&
			strings.Contains(err.Error(), "struct") {
			t.Errorf("%q: %v, want …%s", text, err, want)
		}
	}
}
