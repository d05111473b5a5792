package listing

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"time"

	"github.com/distribution/reference"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/space"
	"berth/internal/cli/table"
)

// Image is an image under one of its names.
type Image struct {
	ID      string   `json:"id"`
	Name    string   `json:"name,omitempty"` // repository and tag
	Tags    []string `json:"tags,omitempty"` // all names of the image
	Digests []string `json:"digests,omitempty"`
	Size    uint64   `json:"size"` // bytes
	Pinned  bool     `json:"pinned,omitempty"`
	User    string   `json:"user,omitempty"`
	// PulledAt is when the image was pulled or loaded last, and UnsharedBytes what it has on disk that no other image
	// shares. Only Berth tells these and ArtifactType.
	PulledAt      *time.Time `json:"pulledAt,omitempty"`
	UnsharedBytes uint64     `json:"unsharedBytes,omitempty"`
	ArtifactType  string     `json:"artifactType,omitempty"` // the media type of an artifact; empty: an image
}

// Pulled is when the image was pulled; zero: not known.
func (r Image) Pulled() time.Time {
	if r.PulledAt == nil {
		return time.Time{}
	}
	return *r.PulledAt
}

// Age is how long ago the image was pulled.
func (r Image) Age(now time.Time) string {
	if r.PulledAt == nil {
		return "-"
	}
	return table.Age(now.Sub(*r.PulledAt))
}

// Images lists the images that are named, or all, each under every one of its names.
func Images(ctx context.Context, conn *connection.Connection, names []string) ([]Image, error) {
	var wanted []reference.Named
	for _, name := range names {
		named, err := reference.ParseNormalizedNamed(name)
		if err != nil {
			return nil, fmt.Errorf("%q is no name of an image: %w", name, err)
		}
		wanted = append(wanted, named)
	}
	list, err := conn.Images.ListImages(ctx, &cri.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	usage, err := space.Images(ctx, conn)
	if err != nil {
		return nil, err
	}
	var rows []Image
	for _, image := range list.GetImages() {
		row := Image{
			ID: image.GetId(), Tags: image.GetRepoTags(), Digests: image.GetRepoDigests(), Size: image.GetSize(),
			Pinned: image.GetPinned(), User: image.GetUsername(),
		}
		if on := usage[row.ID]; on != nil {
			row.UnsharedBytes, row.ArtifactType = on.UnsharedBytes, on.ArtifactType
			if !on.PulledAt.IsZero() {
				row.PulledAt = &on.PulledAt
			}
		}
		if uid := image.GetUid(); uid != nil {
			row.User = strconv.FormatInt(uid.GetValue(), 10)
		}
		names := image.GetRepoTags()
		if len(names) == 0 {
			names = image.GetRepoDigests()
		}
		if len(names) == 0 {
			names = []string{""}
		}
		for _, row.Name = range names {
			if len(wanted) == 0 || isNamed(row.Name, wanted) {
				rows = append(rows, row)
			}
		}
	}
	sort.SliceStable(rows, func(i, j int) bool { return rows[i].Name < rows[j].Name })
	return rows, nil
}

// isNamed says whether a name is of one of the repositories, with the tag where that is given.
func isNamed(name string, wanted []reference.Named) bool {
	own, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(wanted, func(w reference.Named) bool {
		return own.Name() == w.Name() && (reference.IsNameOnly(w) || own.String() == w.String())
	})
}
