// Package pouch is what PouchContainer adds to runtime.v1alpha2, generated from pouch.proto.
package pouch

//go:generate sh generate.sh
