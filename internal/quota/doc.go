// Package quota limits the size of directories with project quotas of ext4 and xfs.
//
// A directory gets a project ID, which all new files in it inherit. The kernel counts the blocks of each ID, and
// refuses writes beyond its limit. A Ledger gives out the IDs: it records an ID before it tells the kernel, and gives
// the ID to another directory only when no file has it any more.
package quota
