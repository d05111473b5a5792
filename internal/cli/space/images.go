package space

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/connection"
)

// Image is what an image takes. Images share layers, so that the sum of their sizes is more than what all take.
type Image struct {
	ID            string    `json:"id"`
	Names         []string  `json:"names,omitempty"`
	PulledAt      time.Time `json:"pulledAt"`
	Bytes         uint64    `json:"bytes"`         // unpacked
	UnsharedBytes uint64    `json:"unsharedBytes"` // of layers that no other image has
	Used          bool      `json:"used"`          // by a container
	Pinned        bool      `json:"pinned"`
	ArtifactType  string    `json:"artifactType,omitempty"` // the media type of an artifact; empty: an image

	layers []*berthv1.LayerUsage
}

// Images asks the runtime for the layers of images, by ID. There are none with another runtime than Berth, which does
// not tell.
func Images(ctx context.Context, conn *connection.Connection) (map[string]*Image, error) {
	response, err := conn.Pulls.Usage(ctx, &berthv1.UsageRequest{})
	if connection.Code(err) == codes.Unimplemented {
		return nil, nil
	}
	if err != nil {
		return nil, connection.Plain(err)
	}
	images, sharers := map[string]*Image{}, map[string]int{}
	for _, usage := range response.GetImages() {
		image := &Image{ID: usage.GetId(), layers: usage.GetLayers(), ArtifactType: usage.GetArtifactType()}
		if at := usage.GetPulledAt(); at != 0 {
			image.PulledAt = time.Unix(0, at)
		}
		for _, layer := range image.layers {
			sharers[layer.GetKey()]++
			image.Bytes += layer.GetBytes()
		}
		images[image.ID] = image
	}
	for _, image := range images {
		for _, layer := range image.layers {
			if sharers[layer.GetKey()] == 1 {
				image.UnsharedBytes += layer.GetBytes()
			}
		}
	}
	return images, nil
}

// layerBytes are the bytes of all layers of images, each layer once.
func layerBytes(images []*Image, counts func(*Image) bool) uint64 {
	layers := map[string]uint64{}
	for _, image := range images {
		if !counts(image) {
			continue
		}
		for _, layer := range image.layers {
			layers[layer.GetKey()] = layer.GetBytes()
		}
	}
	var sum uint64
	for _, bytes := range layers {
		sum += bytes
	}
	return sum
}
