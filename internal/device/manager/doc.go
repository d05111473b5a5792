// Package manager is the device manager of a node that has no kubelet: device plugins register with it over the device
// plugin API v1beta1, it follows what devices they have, and it allocates devices to the containers of pods.
//
// What is allocated is on record before a plugin is asked for it. Records outlive the daemon; what plugins offer
// does not: they register again when the manager's socket appears.
package manager
