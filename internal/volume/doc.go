// Package volume keeps the node's named volumes. A volume is a directory that is made when a container first names it,
// is filled with the files that the container's image has at the mount's path, and stays until it is removed by a call.
//
// The record of a volume is written first. Its directory gets its name, data, by one rename, after all its contents are
// on disk. So every directory data is a complete volume, even if its record is lost, and a volume without data is left
// over from a berthd that was killed.
package volume
