package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
	"berth/internal/cli/space"
	"berth/internal/cli/table"
)

// imageRow is an image under one of its names.
type imageRow struct {
	ID      string   `json:"id"`
	Name    string   `json:"name,omitempty"` // repository and tag
	Tags    []string `json:"tags,omitempty"` // all names of the image
	Digests []string `json:"digests,omitempty"`
	Size    uint64   `json:"size"` // bytes
	Pinned  bool     `json:"pinned,omitempty"`
	User    string   `json:"user,omitempty"`
	// PulledAt is when the image was pulled or loaded last, and UnsharedBytes what it has on disk that no other image
	// shares. Only Berth tells them.
	PulledAt      *time.Time `json:"pulledAt,omitempty"`
	UnsharedBytes uint64     `json:"unsharedBytes,omitempty"`
}

func (a *app) imagesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "images [NAME...]",
		Short: "List images",
		Long: `List images: all, or those of the repositories that are named (busybox, quay.io/team/web), or single ones
of them (busybox:1.37).`,
		ValidArgsFunction: a.complete(0, imageNames),
	}
	return listCommand(a, cmd, imageRows,
		table.List[imageRow]{Name: imageRow.name, ID: imageRow.id, Columns: []table.Column[imageRow]{
			{Title: "IMAGE", Value: func(r imageRow) string { return r.Name }},
			{Title: "ID", Value: func(r imageRow) string { return table.ShortID(r.ID) }},
			{Title: "SIZE", Value: func(r imageRow) string { return table.Bytes(r.Size) },
				Order: func(a, b imageRow) int { return cmp.Compare(a.Size, b.Size) }},
			{Title: "AGE", Value: func(r imageRow) string { return r.age(time.Now()) }, Order: func(a, b imageRow) int {
				return b.pulled().Compare(a.pulled())
			}},
			{Title: "UNSHARED", Wide: true, Value: func(r imageRow) string { return table.Bytes(r.UnsharedBytes) },
				Order: func(a, b imageRow) int { return cmp.Compare(a.UnsharedBytes, b.UnsharedBytes) }},
			{Title: "DIGEST", Wide: true, Value: func(r imageRow) string { return strings.Join(r.Digests, ",") }},
			{Title: "USER", Wide: true, Value: func(r imageRow) string { return r.User }},
			{Title: "PINNED", Wide: true, Value: func(r imageRow) string { return yes(r.Pinned) }},
		}})
}

func (r imageRow) name() string { return r.Name }
func (r imageRow) id() string   { return r.ID }

func (r imageRow) pulled() time.Time {
	if r.PulledAt == nil {
		return time.Time{}
	}
	return *r.PulledAt
}

// age is how long ago the image was pulled.
func (r imageRow) age(now time.Time) string {
	if r.PulledAt == nil {
		return "-"
	}
	return table.Age(now.Sub(*r.PulledAt))
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return ""
}

func imageRows(ctx context.Context, conn *connection.Connection, names []string) ([]imageRow, error) {
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
	var rows []imageRow
	for _, image := range list.GetImages() {
		row := imageRow{
			ID: image.GetId(), Tags: image.GetRepoTags(), Digests: image.GetRepoDigests(), Size: image.GetSize(),
			Pinned: image.GetPinned(), User: image.GetUsername(),
		}
		if on := usage[row.ID]; on != nil {
			row.UnsharedBytes = on.UnsharedBytes
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

// noImage is the error for an image that is not there, with the names that may have been meant.
func noImage(ctx context.Context, conn *connection.Connection, name string) error {
	none := &lookup.NotFoundError{Kind: "image", Name: name, Try: "`berth images` lists what there is."}
	var names []string
	for _, full := range imageNames(ctx, conn) {
		familiar := full
		if named, err := reference.ParseNormalizedNamed(full); err == nil {
			familiar = reference.FamiliarString(named)
		}
		names = append(names, full, familiar)
	}
	none.Near = lookup.Near(name, names)
	return none
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
