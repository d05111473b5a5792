// Package v1alpha2 is the API runtime.v1alpha2: the interface of kubelets up to Kubernetes 1.25, with the additions of
// PouchContainer.
//
// On the wire v1 is a superset of v1alpha2. So this API has no messages of its own: the handlers of v1 answer under the
// names of v1alpha2. PouchContainer's fields have numbers from 100 up, and arrive as unknown fields of v1's messages;
// package api/pouch has messages that read and write them. The differences to v1 are in dialect.go.
package v1alpha2
