// Package export writes images of the store to an archive, from the node alone. The store keeps no packed layers:
// the tar of each layer is made again (package layertar), in a child, and passes only if it has the digest that the
// image's configuration names. So the configuration and the ID of an image are what they were, and its manifest is new:
// it names the layers unpacked.
package export
