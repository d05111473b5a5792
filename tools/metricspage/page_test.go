package metricspage

import (
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write docs/metrics.md")

func TestThePageIsThatOfTheDefinitions(t *testing.T) {
	const path = "../../docs/metrics.md"
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
		t.Error("docs/metrics.md is not what package metrics says: go generate ./tools/metricspage")
	}
}
