package image

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
)

var (
	// An ID is the digest of a configuration, and that is what the image's manifest says: mostly of SHA-256, whose name
	// can be left out.
	hexID    = regexp.MustCompile(`^((sha256:)?[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128})$`)
	hexStart = regexp.MustCompile(`^(sha256:)?[0-9a-f]{1,63}$`)
)

// wholeID is an ID with the name of its algorithm.
func wholeID(id string) string {
	if strings.Contains(id, ":") {
		return id
	}
	return "sha256:" + id
}

// parseReference normalizes a reference as docker does: busybox is docker.io/library/busybox:latest, and a tag beside a
// digest is dropped.
func parseReference(ref string) (reference.Named, error) {
	if ref == "" {
		return nil, fmt.Errorf("an image without a name: %w", errdefs.ErrInvalidArgument)
	}
	if hexID.MatchString(ref) {
		return nil, fmt.Errorf("image %s: an ID is not a name in a registry: %w", ref, errdefs.ErrInvalidArgument)
	}
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return nil, fmt.Errorf("image %q: %w: %w", ref, err, errdefs.ErrInvalidArgument)
	}
	return named, nil
}

// matchPattern tells whether name is what a pattern says, in which * stands for any text.
func matchPattern(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == name
	}
	if !strings.HasPrefix(name, parts[0]) {
		return false
	}
	name = name[len(parts[0]):]
	last := parts[len(parts)-1]
	for _, p := range parts[1 : len(parts)-1] {
		i := strings.Index(name, p)
		if i < 0 {
			return false
		}
		name = name[i+len(p):]
	}
	return strings.HasSuffix(name, last)
}
