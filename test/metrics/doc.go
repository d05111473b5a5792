// Package metrics tests what a node tells Prometheus, and what packaging/monitoring asks of it: each query of the
// dashboard and of the alerts has to find its series, of a node on which everything has happened that they look for.
//
// Without a Prometheus, names, labels and matchers of the queries are looked up in a scrape. `make metrics` builds a
// real one (from the module in build/), which scrapes the node, evaluates each query and loads the alerts.
package metrics
