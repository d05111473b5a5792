package model

// PullPhase is the phase of a layer in a pull.
type PullPhase string

const (
	PullWaiting PullPhase = "waiting"
	PullLoading PullPhase = "loading" // downloaded, verified and unpacked as one stream
	PullPresent PullPhase = "present" // it was here
	PullDone    PullPhase = "done"
)

// PullProgress is how far a layer is. Bytes are those of the packed layer.
type PullProgress struct {
	Layer string // its digest
	Phase PullPhase
	Done  int64
	Total int64
}

// PullRequest asks for an image from its registry.
type PullRequest struct {
	Ref  string // any name that docker takes
	Auth *Auth  // nil: none
	// Progress, if not nil, is told of each layer, about ten times a second, from one goroutine.
	Progress func(PullProgress)
	// SpecAnnotations are kept with the image and told of it; they change nothing. Empty: those that it has stay.
	SpecAnnotations map[string]string
}
