package model

import (
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Auth is what a client sends to authenticate a pull. No field of it may reach a log or an error.
type Auth struct {
	Username      string
	Password      string
	Auth          string // base64 of username:password
	ServerAddress string // the registry that the credentials are for; empty: the one of the reference
	IdentityToken string // an OAuth2 refresh token
	RegistryToken string // a bearer token
}

// LayerUsage is how much disk space a layer of an image takes. Images that share it have the same key.
type LayerUsage struct {
	Key   string
	Bytes uint64
}

// ImageVolumeError is the error for an image that cannot be a volume of a container. It adds nothing to the text
// and the code of what is wrong; an API may tell it by it.
type ImageVolumeError struct{ Err error }

func (e *ImageVolumeError) Error() string { return e.Err.Error() }

func (e *ImageVolumeError) Unwrap() error { return e.Err }

// Image is an image, or an artifact, that the node has. Its ID is the digest of its configuration; that of an artifact
// is the digest of its manifest.
type Image struct {
	ID          string   // sha256:…
	Manifest    string   // sha256:… of the manifest that it was pulled with
	RepoTags    []string // docker.io/library/busybox:1.36, sorted
	RepoDigests []string // docker.io/library/busybox@sha256:…, sorted
	Size        uint64   // bytes of its compressed blobs as pulled
	Pinned      bool
	Pulled      time.Time     // the last time
	PullTook    time.Duration // 0: not known, or it was loaded from an archive
	Config      ocispec.ImageConfig
	Partial     bool // Config has the user only, since the rest is long, and this is of a list of images
	Platform    ocispec.Platform
	Layers      []string // diff IDs, base first; of an artifact the digests of its layers
	Artifact    string   // the media type of what an artifact is; empty: an image
	// Checkpoint is the name of the container that it is a checkpoint of, by the reference that was asked for; empty: it
	// is none.
	Checkpoint string
	// SpecAnnotations are PouchContainer's, of the last pull that brought some. They are shared: do not write to them.
	SpecAnnotations map[string]string
}

// ImageEventType says what happened to a name under which an image is listed.
type ImageEventType string

const (
	ImageCreated ImageEventType = "created" // the name is new
	ImageUpdated ImageEventType = "updated" // the name is now that of another image, or the image was pinned or unpinned
	ImageDeleted ImageEventType = "deleted" // no image has the name any more
)

// ImageEvent tells that a name of an image has changed: a tag, a digest of a repository, or the ID.
type ImageEvent struct {
	Type    ImageEventType
	Name    string
	ImageID string // of the image that has the name now; empty if Type is ImageDeleted
	At      time.Time
}
