// Package quota limits directories with the project quotas of ext4 and xfs.
//
// A directory gets a project ID, which all that is made in it inherits, and the kernel counts the blocks
// of the ID and refuses those beyond its limit. IDs are given out by a Ledger, from records: an ID is written down
// before the kernel hears of it, and is free again when no file bears it.
package quota
