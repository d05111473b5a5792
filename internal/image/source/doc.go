// Package source reads the documents of an image, from a registry or an archive: an index, the manifest for this
// platform, and the configuration. It enforces the node's limits on them.
package source
