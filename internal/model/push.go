package model

// PushRequest asks for an image to be brought to a registry.
type PushRequest struct {
	Image string // a name or an ID
	Name  string // where to, with a tag; empty: the image's name
	Auth  *Auth  // nil: none
	// Progress, if not nil, is told of each layer, from one goroutine at a time.
	Progress func(PushProgress)
}

// PushProgress is how far a layer is. Bytes are those of the packed layer, and before it is packed those of its tar.
type PushProgress = PullProgress

// Pushed is what a registry has after a push.
type Pushed struct {
	Name   string // in full, with the tag
	Digest string // of the manifest
}
