// Package metricspage writes docs/metrics.md from the definitions of the metrics, in package metrics. Its test fails
// where the page is another.
//
// After a change of the definitions, go generate writes the page anew.
package metricspage

//go:generate go test -run TestThePageIsThatOfTheDefinitions -update .
