// Package dirtree reaches the directories beneath one that is open, by descriptors alone. What is in the tree may be
// anybody's, and may change at any moment: a name is always one component in an open directory, or a path
// that the kernel resolves without following a link and without leaving the tree. Neither the depth nor the width
// of a tree costs descriptors, and no path is ever put together in memory.
package dirtree
