// Package pod is the domain: the life of pods and containers. A Manager has a method for each call of the CRI, in a
// file that is named after the call: CreateContainer is in container_create.go, and Status of the CRI in status.go.
// Only the calls for statistics and metrics share a file, usage.go. A call records each resource on disk before it
// makes the resource, and undoes its steps if one of them fails. When berthd starts, the records are compared with the
// kernel and the keeper.
//
// Calls that the CRI does not have are in files of their own. Those that only containerd's API needs are in
// containerd_api.go.
//
// The packages below this one own what the calls share, and do not import this package: the records (package record),
// the list of pods and containers (index), the order of operations on one object (operation), steps and their undo
// (steps), paths (layout), cgroups, the parts of a pod, the storage of containers, and so on. Package teardown stops
// and removes pods and containers, package watch reacts to events that no call has caused, and package recovery makes
// the comparison at berthd's start.
//
// The package knows neither gRPC nor the messages of any API. An API translates its requests into package model and
// calls a Manager. Errors name fields of the model (model.FieldError).
package pod
