// Package cli has the commands of `berth`, one file for each. The commands are clients of a runtime's socket. They use
// the Container Runtime Interface, and Berth's own service for what the CRI lacks, such as the progress of pulls.
package cli
