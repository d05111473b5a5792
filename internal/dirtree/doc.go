// Package dirtree works on directory trees that may be hostile and may change at any moment. It reaches every file
// below an open directory by descriptors only: a name is always one component in an open directory, or a path that the
// kernel resolves without following links and without leaving the tree. The number of open descriptors does not grow
// with the depth or width of a tree, and no full path is built in memory.
package dirtree
