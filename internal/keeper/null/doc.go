// Package null opens null devices for processes of containers. They do not get the host's /dev/null: a process that has
// it as a standard stream can change its owner and mode through the descriptor, for the whole host. An OCI runtime does
// so when it gives the streams of a container to the container's user (crun 1.8.1), and any program with the necessary
// rights can do so.
package null
