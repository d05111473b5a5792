// Package disk writes small files so that a crash or a full disk leaves the old content or the new one, and tells a
// full disk from other errors.
package disk
