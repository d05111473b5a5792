package images

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/listing"
	"berth/internal/cli/lookup"
	"berth/internal/cli/table"
)

func imagesCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "images [NAME...]",
		Short: "List images",
		Long: `List images: all, or those of the repositories that are named (busybox, quay.io/team/web), or single ones
of them (busybox:1.37). Artifacts, which containers can mount as volumes, are among them: -o wide has their types.`,
		ValidArgsFunction: a.Complete(0, command.ImageNames),
	}
	return command.List(a, cmd, listing.Images,
		table.List[listing.Image]{Name: func(r listing.Image) string { return r.Name },
			ID: func(r listing.Image) string { return r.ID }, Columns: []table.Column[listing.Image]{
				{Title: "IMAGE", Value: func(r listing.Image) string { return r.Name }},
				{Title: "ID", Value: func(r listing.Image) string { return table.ShortID(r.ID) }},
				{Title: "SIZE", Value: func(r listing.Image) string { return table.Bytes(r.Size) },
					Order: func(a, b listing.Image) int { return cmp.Compare(a.Size, b.Size) }},
				{Title: "AGE", Value: func(r listing.Image) string { return r.Age(time.Now()) },
					Order: func(a, b listing.Image) int { return b.Pulled().Compare(a.Pulled()) }},
				{Title: "UNSHARED", Wide: true, Value: func(r listing.Image) string { return table.Bytes(r.UnsharedBytes) },
					Order: func(a, b listing.Image) int { return cmp.Compare(a.UnsharedBytes, b.UnsharedBytes) }},
				{Title: "DIGEST", Wide: true, Value: func(r listing.Image) string { return strings.Join(r.Digests, ",") }},
				{Title: "USER", Wide: true, Value: func(r listing.Image) string { return r.User }},
				{Title: "PINNED", Wide: true, Value: func(r listing.Image) string { return table.Yes(r.Pinned) }},
				{Title: "ARTIFACT", Wide: true, Value: func(r listing.Image) string { return r.ArtifactType }},
			}})
}

// NotFound is the error for an image that is not there, with the names that may have been meant.
func NotFound(ctx context.Context, conn *connection.Connection, name string) error {
	none := &lookup.NotFoundError{Kind: "image", Name: name, Try: "`berth images` lists what there is."}
	var names []string
	for _, full := range command.ImageNames(ctx, conn) {
		familiar := full
		if named, err := reference.ParseNormalizedNamed(full); err == nil {
			familiar = reference.FamiliarString(named)
		}
		names = append(names, full, familiar)
	}
	none.Near = lookup.Near(name, names)
	return none
}

// explain gives the error of a call the names that may have been meant, where one of the images is not there.
func explain(ctx context.Context, conn *connection.Connection, err error, images ...string) error {
	if err == nil {
		return nil
	}
	for _, name := range images {
		request := &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}}
		if status, statusErr := conn.Images.ImageStatus(ctx, request); statusErr == nil && status.GetImage() == nil {
			return NotFound(ctx, conn, name)
		}
	}
	return connection.Plain(err)
}
