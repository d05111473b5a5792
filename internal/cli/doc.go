// Package cli is the commands of `berth`, a file each. They speak to a runtime over its socket and know nothing that a
// client of the Container Runtime Interface does not, but for the progress of pulls, which is a service of Berth's own.
package cli
