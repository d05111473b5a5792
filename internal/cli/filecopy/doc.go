// Package filecopy copies files and directories between this machine and the root file systems of containers, as
// `podman cp` does. It reads and writes a container's files itself, through /proc/PID/root, so that the image needs no
// tar.
//
// A container's files are hostile. Two rules keep a copy within the container's root:
//
//   - The path that somebody gave is resolved by openat2 with RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS: an absolute
//     symbolic link, and "..", lead to somewhere in the container.
//   - Everything below that path is opened relative to the descriptor of its directory, and no symbolic link is
//     followed. A file is opened for reading or writing only after its descriptor has been seen to be that of a
//     regular file.
//
// The same holds for the names in a tar archive that a container takes: they are walked one by one, links of the
// archive itself are not followed, and ".." is refused.
//
// Only the permission bits of a file are copied: a setuid program of a container does not become one of this machine.
package filecopy
