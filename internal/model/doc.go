// Package model has the types for pods, containers and images. They belong to no wire format: every API (the CRI
// versions, Berth's own) translates its messages to and from these types, and everything behind the APIs uses only
// them. The types are plain data. They are stored as JSON in the records of a node, so the JSON name of a field is part
// of the format on disk and does not change.
//
// Errors wrap a sentinel of github.com/containerd/errdefs, from which an API takes the gRPC code.
package model
