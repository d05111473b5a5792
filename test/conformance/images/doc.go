// Package images builds the images that critest pulls, from Debian packages, and pushes them to
// a registry that stands in for the public ones. It has all of them but one: an image that is named by the digest
// of its upstream build.
package images
