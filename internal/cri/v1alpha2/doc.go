// Package v1alpha2 is the API runtime.v1alpha2: the interface of kubelets up to Kubernetes 1.25, with what
// PouchContainer adds to it.
//
// On the wire v1 is a superset of v1alpha2, so this API has no messages of its own: the handlers of v1 answer under the
// names of v1alpha2. PouchContainer's fields all have numbers from 100 up; they arrive as unknown fields of v1's
// messages, and package api/pouch has messages that read and write these. What this API adds to v1 is its dialect.
package v1alpha2
