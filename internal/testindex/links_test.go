package testindex

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```$")
	// removed is what a heading loses on its way to an anchor, as GitHub makes them.
	removed = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// Links in the documents lead to files that exist and to headings that those files have. Links to other sites are not
// followed. Below tools are parts from which pages are made, whose links are right in the page.
func TestLinksOfTheDocumentsResolve(t *testing.T) {
	checkLinks(t, "../..")
}

// An installed document has no repository beside it. Seen to fail with all documents in one folder, as they once were
// installed, and with the links to source code left in.
func TestLinksOfInstalledDocumentsResolve(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command("../../packaging/docs.sh", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	checkLinks(t, dir)
}

// checkLinks fails the test for each link of a document below root that leads nowhere.
func checkLinks(t *testing.T, root string) {
	t.Helper()
	anchors := map[string]map[string]bool{}
	pages := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "vendor" ||
			d.Name() == "internal" || d.Name() == "tools"):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		pages[path] = fenced.ReplaceAllString(string(text), "")
		anchors[path] = map[string]bool{}
		for _, m := range heading.FindAllStringSubmatch(pages[path], -1) {
			title := link.ReplaceAllString(m[1], "]")
			anchors[path][strings.ReplaceAll(removed.ReplaceAllString(strings.ToLower(title), ""), " ", "-")] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(pages) < 30 {
		t.Fatalf("%d documents below %s", len(pages), root)
	}
	for page, text := range pages {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: the link %s leads nowhere", page, m[1])
			} else if anchor != "" && anchors[target] != nil && !anchors[target][anchor] {
				t.Errorf("%s: the link %s names no heading of that page", page, m[1])
			}
		}
	}
}
