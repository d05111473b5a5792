// Package devices tries device plugins and CDI devices on whole nodes: what a plugin answers is in the container,
// what it does wrong hurts nobody else, and what is allocated outlives the daemon.
package devices
