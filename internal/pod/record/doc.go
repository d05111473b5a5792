// Package record keeps what is known of each pod and container, in memory and on disk.
//
// A Table holds the objects of one kind, each as an Entry. A record is read as a copy and is changed by Entry.Update
// alone, which checks that a change of phase is legal, writes the record to disk before memory has it, and publishes
// the status that clients are told. To add a field to a record, add it to Sandbox or Container: its JSON is the
// format on disk, so the zero value must be right for a record that an earlier version of Berth has written.
package record
