// Package export writes images of the store to an archive, and pushes them to a registry, without downloading anything.
// The store keeps no compressed layers: a confined child makes the tar of each layer again (package layertar), and the
// tar is used only if it has the digest that the image's configuration names. So the configuration and the ID of an
// image stay the same. The manifest in an archive is new, because it names uncompressed layers.
package export
