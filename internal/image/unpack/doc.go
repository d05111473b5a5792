// Package unpack turns the tar of an image's layer into a directory that overlayfs can stack:
// whiteouts become character devices 0/0, opaque directories carry trusted.overlay.opaque, and owners, modes, times,
// extended attributes, hard links, device nodes and holes are as the tar has them (OCI image-spec, layer.md).
//
// The tar is not trusted. Every name is walked from the layer's directory one component at a time, without following a
// link, and links are expanded as if that directory were the root, so nothing outside of it can be reached.
package unpack
