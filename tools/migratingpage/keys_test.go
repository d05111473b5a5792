package migratingpage

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var tag = regexp.MustCompile("toml:\"([a-z0-9_]+)[\",]")

// A key that a newer containerd has fails this until the page says what it is.
func TestEveryKeyOfContainerdIsOnThePage(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/containerd/containerd/v2").Output()
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "internal/cri/config/config.go"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/migrating.md")
	if err != nil {
		t.Fatal(err)
	}
	found := tag.FindAllStringSubmatch(string(source), -1)
	if len(found) < 50 {
		t.Fatalf("containerd's source has %d keys: it is laid out otherwise than it was", len(found))
	}
	for _, key := range found {
		switch key[1] {
		case "containerd", "cni", "x509_key_pair_streaming", "sandbox_image": // tables, and what is no more
			continue
		}
		if !strings.Contains(string(page), "`"+key[1]+"`") {
			t.Errorf("docs/migrating.md does not say what %s is", key[1])
		}
	}
}
