package listing

import (
	"strings"
	"testing"

	"github.com/distribution/reference"
)

func TestImagesAreNamedByRepositoryOrWhole(t *testing.T) {
	for name, want := range map[string]bool{
		"busybox": true, "busybox:1.37": true, "docker.io/library/busybox": true, "busybox:1.36": false, "box": false,
		"quay.io/library/busybox": false,
	} {
		named, err := reference.ParseNormalizedNamed(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := isNamed("docker.io/library/busybox:1.37", []reference.Named{named}); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if isNamed("", nil) {
		t.Error("an image without a name has one")
	}
}

func TestPortsAreWorded(t *testing.T) {
	got := ports(`[{"containerPort":80,"hostPort":8080,"protocol":"TCP"},{"containerPort":53,"protocol":"UDP"},
		{"containerPort":1,"hostPort":2,"hostIP":"127.0.0.1","protocol":"TCP"}]`)
	if want := "8080->80/tcp 53/udp 127.0.0.1:2->1/tcp"; strings.Join(got, " ") != want {
		t.Errorf("got %v", got)
	}
	if ports("nonsense") != nil || ports("") != nil {
		t.Error("what is no list has no ports")
	}
}
