// Package image is the node's store of images. It pulls images from registries, unpacks their layers into directories
// that overlayfs stacks, and keeps the layers that images and containers use.
//
// A layer is downloaded, verified, decompressed and unpacked as one stream into a directory of its own. Several layers
// are processed at the same time; no layer waits for its parent, and no compressed copy is kept. The directory has a
// short number as its name, and is found by the layer's diff ID, so images share the directory of a common layer. There
// is one exception: a layer may have files below directories for which it has no entry. The attributes of these
// directories come from the layers below. If they differ, the layer gets a variant for that chain of parents.
//
// What is no image is an artifact: files, which no child parses, and which containers can mount. See artifact.go.
//
// On disk, under Config.Root:
//
//	images.db                records of images and layers, manifests, configurations (bbolt)
//	records/<id>/image.json  the record of an image again, for a new images.db if the old one is damaged
//	keep-layers              the boot in which no unknown layer is removed, because images.db or a layer was lost
//	layers/<n>/fs            a layer's directory
//	layers/<n>/layer.json    written when fs is complete: without it, and without a record, the directory is a leftover
//	layers/<n>/synced        there once fs and layer.json have been synced to the disk
//	layers/<n>/tar-record    what the directory does not have of the layer's tar (package layertar)
//	layers/<n>/variant       a variant of this layer that is being made; it moves to a number of its own
//
// The records are correct after a kill at any moment and after a power failure: until the file system has been synced,
// a record names the boot in which it was written, and is not used after a reboot. So no pull waits for the disk.
package image
