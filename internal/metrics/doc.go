// Package metrics is what a daemon tells Prometheus of itself. Each metric is defined once, in definitions.go, from
// which the page docs/metrics.md is made too.
//
// A Set counts what happens. Its methods do nothing on a nil *Set, which is what a node without metrics.address has,
// so nobody who counts has to ask. What can be counted at any time (pods, layers, the keeper's numbers) is read when
// Prometheus asks, by Sources.
package metrics
