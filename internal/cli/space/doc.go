// Package space counts what images, containers, volumes and logs take on the runtime's disk, and how much of it nothing
// needs.
package space
