// Package server is the keeper itself: the one parent of every container of a node.
//
// It keeps a table with a row for each container, written to disk (one small file a row) so that another keeper can go
// on with it. The kernel is asked before the table is believed. What each file is about:
//
//   - run.go, exec.go, remove.go: the life of containers and of further processes in them
//   - runtime.go, inprocess.go, binary.go: how they are made, by this process or by an OCI runtime
//   - first.go, setup.go, join.go: containers and execs by a stage; laststage.go: what libcontainer sets up
//   - session.go, custody.go, adopt.go, fdstore.go: descriptors that others hold in case this process dies
//   - upgrade.go: replacing the program in place, with everything open
//   - leave.go: an end in order, with a custodian left behind
//   - orphan.go: reaping what nobody waits for
//
// Locks: Server.mu guards the maps, container.mu one container. Server.mu is never taken while a container.mu is held.
package server
