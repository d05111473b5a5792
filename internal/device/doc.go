// Package device has what the device manager and device plugins share: the names of resources and devices, NUMA nodes,
// preferred combinations of devices, and the way in which a pod requests devices for its containers.
package device
