package testindex

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The table of docs/security.md is complete: a fuzzer that nobody knows of is not run for long, and one that is gone
// protects nothing.
func TestEveryFuzzerIsInTheDocuments(t *testing.T) {
	const root = "../.."
	index, err := Read(root)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(root + "/docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| \[(Fuzz\w+)\]\(\.\./([^)]+)\) \|`).
		FindAllStringSubmatch(string(page), -1) {
		listed[m[2]+" "+m[1]] = true
	}
	for name, folders := range index {
		for _, folder := range folders {
			if strings.HasPrefix(name, "Fuzz") && !listed[folder+" "+name] {
				t.Errorf("docs/security.md does not list %s of %s", name, folder)
			}
			delete(listed, folder+" "+name)
		}
	}
	for rest := range listed {
		t.Errorf("docs/security.md lists %s, which there is not", rest)
	}
}
