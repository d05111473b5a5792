// Package model says what a pod, a container and an image are, in words that belong to no wire format. Every door (the
// CRI versions, the command line) translates into these types and out of them; everything behind the doors speaks only
// them. The types are plain data: they are stored as JSON in the records of a node, so a field's JSON name is part of
// the format on disk and does not change.
//
// Errors wrap a sentinel of github.com/containerd/errdefs, so that a door can name the gRPC code that a client acts on.
package model
