// Package pod is the domain: the life of pods and containers. It keeps a record of each on disk, written before the
// resource that it speaks of is made; it compares the records with the kernel and the keeper at every start of berthd;
// and it runs the steps of a start, a stop and a removal, each with its undo.
//
// A Manager has a method for each call of the CRI, in the file that is named after the call: CreateContainer is in
// container_create.go. What calls have in common is owned by the packages below this one, which do not know it: records
// (package record), which pods and containers there are (index), the order of operations on one object (operation),
// steps and their undo (steps), where things are on disk (layout), cgroups, the parts of a pod, the storage of
// containers and so on. Package teardown ends and removes pods and containers, package watch follows what happens to
// them without a call, and package recovery is the comparison at the start.
//
// The package knows nothing of gRPC and of no API's names. An API translates its requests into package model and calls
// a Manager; errors name fields of the model (model.FieldError).
package pod
