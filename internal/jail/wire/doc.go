// Package wire is what a jail and the child in it say to each other.
package wire
