// Package daemon is the keeper itself: the one parent of every container of a node.
//
// It keeps a table with a record for each container, written to disk (one small file a record) so that another keeper
// can go on with it. The kernel is asked before the table is believed. What each file is about:
//
//   - server.go: a keeper's parts, its beginning and its end (package gate knows what is let in meanwhile)
//   - containers.go, container.go: the table, and a container with its pipes and its end
//   - rpc.go: the calls; run.go, exec.go, remove.go, checkpoint.go, watch.go: what they do. engines.go has the
//     container engines that do it; which of them is chosen in package runtime/selector
//   - session.go, escrow.go: the clients, by package session, and the descriptors that they hold in case this process
//     dies
//   - adopt.go: going on with the containers of a keeper that has died
//   - upgrade.go: replacing the program in place, with everything open, by package handover
//   - shutdown.go: an end in order, with an escrow process left behind
//   - podinit.go: the inits of pods
//
// Locks: each part has one, and container.mu guards one container. A part calls nothing else with its lock held.
package daemon
