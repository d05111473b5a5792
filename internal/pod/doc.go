// Package pod is the domain: the life of pods and containers. It keeps a record of each on disk, written before the
// resource that it speaks of is made; it compares the records with the kernel and the keeper at every start of berthd;
// and it runs the steps of a start, a stop and a removal, each with its undo.
//
// It knows nothing of gRPC. A door translates its requests into package model and calls a Manager.
package pod
