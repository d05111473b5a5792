// Package volume keeps the node's named volumes: directories that are made when a container first names them,
// filled with what the container's image has at that place, and kept until somebody removes them.
//
// A volume's record stands before its directory, and the directory appears under its name, data, in one step,
// when all of its content is there and on disk. So what has data is a volume, whatever became of its record,
// and what has none is the remainder of a daemon that died.
package volume
