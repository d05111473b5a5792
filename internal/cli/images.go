package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/distribution/reference"
	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
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
			{Title: "DIGEST", Wide: true, Value: func(r imageRow) string { return strings.Join(r.Digests, ",") }},
			{Title: "USER", Wide: true, Value: func(r imageRow) string { return r.User }},
			{Title: "PINNED", Wide: true, Value: func(r imageRow) string { return yes(r.Pinned) }},
		}})
}

func (r imageRow) name() string { return r.Name }
func (r imageRow) id() string   { return r.ID }

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
	var rows []imageRow
	for _, image := range list.GetImages() {
		row := imageRow{
			ID: image.GetId(), Tags: image.GetRepoTags(), Digests: image.GetRepoDigests(), Size: image.GetSize(),
			Pinned: image.GetPinned(), User: image.GetUsername(),
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
