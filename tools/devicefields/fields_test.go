package devicefields

import (
	"flag"
	"os"
	"testing"

	"berth/internal/testindex"
)

var update = flag.Bool("update", false, "write docs/devices.md")

const (
	root = "../.."
	file = root + "/docs/devices.md"
)

func TestThePageIsOfThisList(t *testing.T) {
	index, err := testindex.Read(root)
	if err != nil {
		t.Fatal(err)
	}
	want, err := page(func(tests string) (string, error) { return index.Links(tests, "test/devices") })
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/devices.md is not of this list: go generate ./tools/devicefields")
	}
}
