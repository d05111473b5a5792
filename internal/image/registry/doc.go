// Package registry reads images from registries: it finds the hosts that serve a name (hosts.toml, as containerd's
// certs.d has it), authenticates, resolves tags, and reads manifests and blobs. The protocol itself is containerd's
// (core/remotes/docker); here is what a node needs around it: which host to ask when another fails, retries that resume
// where a connection broke, a clock on connections that bring nothing, bounds on what is read into memory, and errors
// that carry a code and no secret.
package registry
