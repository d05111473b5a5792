// Package manager is the device manager of a node without a kubelet. Device plugins register with it over the device
// plugin API v1beta1. It follows the state of their devices, and allocates devices to the containers of pods.
//
// An allocation is recorded before the plugin is asked for the device. These records survive a restart of berthd. The
// lists of devices do not: plugins register again when the manager's socket appears.
package manager
