// Package record keeps the records of pods and containers, in memory and on disk.
//
// A Table has the records of one kind, each in an Entry. Readers get a copy. Entry.Update is the only way to change a
// record: it checks that the change of phase is legal, writes the record to disk, changes it in memory, and publishes
// the new status.
//
// To add a field to a record, add it to Sandbox or Container. Their JSON is the format on disk, and records of earlier
// versions do not have the field, so its zero value must mean the earlier behaviour. An earlier berthd ignores the
// field, and drops it when it writes the record. If that would do harm, the version of the format has to grow: see
// package state. CONTRIBUTING.md has all steps.
package record
