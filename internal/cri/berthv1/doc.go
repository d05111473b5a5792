// Package berthv1 is the API for what the Container Runtime Interface has no words for: pulls that tell how far they
// are, commands with a user of their own, signals, the devices of device plugins, and named volumes.
package berthv1
