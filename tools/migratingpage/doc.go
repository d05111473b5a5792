// Package migratingpage checks docs/migrating.md, which a person writes: every key of the CRI configuration of the
// containerd that this module depends on stands there.
package migratingpage
