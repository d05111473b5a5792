// Package state keeps the records of a node on disk: JSON files for each pod, container, image, volume, quota and so
// on. A record is written before the resource that it describes is made, replaced as a whole, and read again when
// berthd starts.
//
// Records survive the death of any process at any moment. They are not synced to disk one by one, because the disk's
// latency would then be part of every pod start. After a power failure nothing that they describe runs any more. If
// the newest version of a record is incomplete, the version before the last change is read. If that cannot be read
// either, the record is reported as broken, so that everything with its ID can be removed.
//
// Each file of a record has a checksum, which detects bytes that the disk has changed. It also has the version of its
// format, so that an older berthd refuses a format that it would misunderstand.
package state
