// Package device knows what a device plugin's resources and devices are, whatever side of the protocol one is on:
// names, NUMA nodes, which devices go well together, and how a pod says what its containers ask for.
package device
