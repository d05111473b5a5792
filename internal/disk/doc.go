// Package disk writes small files atomically: after a crash or on a full disk, a file has its old content or its new
// content. It also syncs directories, makes files without a name, and tells a full disk from other errors.
package disk
