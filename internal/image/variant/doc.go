// Package variant makes the variant of an image's layer that fits the layers below it.
//
// A layer's tar may put a/b/c somewhere without an entry for a and a/b. Unpacked on top of its parents, as the layer
// was meant to be, c goes into the a/b that is there: with its owner and mode, and, where a is a link to x, into x/b.
// Layers are unpacked without parents, so a and a/b were made anew, and overlayfs would show those. Where that makes
// a difference, the image gets a variant of the layer for its chain of parents: the same files, by hard links,
// in directories that look, and are, where the layers below have them. The same holds for the root directory, for which
// many layers have no entry.
//
// Neither the layer nor those below it are trusted: each name and each link of theirs is an attacker's. So the variant
// is not a copy in which directories are moved about. All places are decided from the layers as they are, in memory,
// and only then is a new tree made in which each directory is made once, in its place, and each file linked once.
// Everything is reached by descriptors that cannot leave the directories that the caller has opened, and no link
// is followed by the kernel. What can mean two things, because the layer's order of entries is not known any more,
// is refused.
//
// The package knows nothing of a store of images. It can run in a process of its own that sees only the directories
// that it is given: it opens nothing by a path from the root, and needs no /proc.
package variant
