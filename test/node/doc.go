// Package node runs a private node: berthd, its keeper and a registry on loopback under one temporary directory, with a
// bridge, addresses and cgroups of its own, so that many can live side by side on one machine. It hands out CRI
// clients, kills and restarts the programs, and counts what is left behind. A private containerd can be started
// the same way, to check a claim against it or to measure beside it.
//
// The package does not import testing: suites use it through nodetest, and programs use it as it is.
package node
