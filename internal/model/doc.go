// Package model says what a pod, a container and an image are, in words that belong to no wire format. Every API (the
// CRI versions, Berth's own) translates into these types and out of them; everything behind the APIs speaks only
// them. The types are plain data: they are stored as JSON in the records of a node, so a field's JSON name is part of
// the format on disk and does not change.
//
// Errors wrap a sentinel of github.com/containerd/errdefs, so that an API can name the gRPC code that a client acts on.
package model
