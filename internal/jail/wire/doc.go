// Package wire has the messages between a jail and its children.
package wire
