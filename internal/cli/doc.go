// Package cli puts `berth` together from its commands, which are in a package for each group of `berth --help`: pods,
// images, volumes and node, one file for each command. The commands are clients of a runtime's socket. They use the
// Container Runtime Interface, and Berth's own service for what the CRI lacks, such as the progress of pulls.
package cli
