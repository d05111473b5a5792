// Package state keeps the records of a node: one JSON file for each pod and container. A record is written before the
// resource that it speaks of is made, replaced as a whole, and read again when berthd starts.
//
// Records survive the death of any process at any moment. They are not synced to disk one by one, since that would put
// the disk's latency on the way of every pod start: after a power failure nothing runs any more of what they describe,
// and a record that was torn is read as it was before its last change, or reported as broken, so that what carries
// its ID can be removed.
//
// Each file of a record carries a checksum, so that a byte that has changed on the disk is noticed, and the version
// of its format, so that an older berthd refuses what it would misunderstand.
package state
