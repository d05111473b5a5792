// Package image is the node's store of images: it pulls them from registries, unpacks their layers into directories
// that overlayfs stacks, and keeps what images and containers need.
//
// A layer is downloaded, verified, decompressed and unpacked as one stream into a directory of its own, several at a
// time; none waits for its parent, and no compressed copy is kept. A layer's directory is named by a short number and
// known by its diff ID, so images that have a layer in common have its directory in common. The one exception
// is a layer that puts files below directories it does not mention: how those look depends on the layers below,
// so where it matters such a layer has a variant for that chain of parents.
//
// On disk, under Config.Root:
//
//	images.db        records of images and layers, manifests, configurations (bbolt)
//	layers/<n>/fs    a layer's directory
//	layers/<n>/layer.json  written when fs is complete: without it, and without a record, the directory is a leftover
//	layers/<n>/variant     a variant of this layer that is being made; it moves to a number of its own
//
// What is recorded holds across a kill at any moment and across a power failure: a record says which boot
// of the machine it is from until the file system has been synced, and is not believed in another. So no pull waits
// for the disk.
package image
