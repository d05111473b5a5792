package configpage

import (
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write docs/configuration.md")

func TestThePageIsThatOfTheDefaultFile(t *testing.T) {
	const path = "../../docs/configuration.md"
	if *update {
		if err := os.WriteFile(path, []byte(page()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != page() {
		t.Error("docs/configuration.md is not what default.toml says: go generate ./tools/configpage")
	}
}
