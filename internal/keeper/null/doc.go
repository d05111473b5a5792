// Package null opens null devices for processes of containers. The host's /dev/null is not given to them:
// a process that has it as a standard stream can change its owner and mode by the descriptor, for all of the host.
// An OCI runtime does so by itself, when it gives the streams of a container to the container's user (crun 1.8.1),
// and so can every program that has the rights to.
package null
