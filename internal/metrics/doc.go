// Package metrics has berthd's metrics for Prometheus. definitions.go defines each metric once; the page
// docs/metrics.md is made from it.
//
// A Set counts events. Its methods do nothing on a nil *Set, which a node without metrics.address has, so callers need
// no check. Sources read values that are available at any time (pods, layers, the keeper's numbers) when Prometheus
// scrapes.
package metrics
