// Package daemon is the keeper: the parent process of all containers of a node.
//
// The keeper has a table of all containers, with a record of each on disk, so that another keeper can take over. It
// compares the table with the kernel before it uses it. The files:
//
//   - server.go: the keeper's parts, its start and its end (package gate refuses calls then)
//   - lock.go: the lock that only one keeper of a directory has
//   - containers.go, container.go: the table; one container, with its pipes and its end
//   - rpc.go: the calls; run.go, exec.go, remove.go, checkpoint.go, watch.go, counts.go: what the calls do
//   - withdrawn.go: calls whose caller no longer waits, and which are refused when they arrive late
//   - engines.go: the container engines that do it; package runtime/selector chooses one of them
//   - session.go, escrow.go: clients (package session), and the descriptors that they hold in case the keeper is killed
//   - adopt.go: taking over the containers of a keeper that was killed; undo.go: removing those whose start was cut off
//   - upgrade.go: executing a new version of the program in the same process, with all descriptors open (package
//     handover)
//   - shutdown.go: an orderly end, which leaves an escrow process behind
//   - podinit.go: the init processes of pods
//
// Locks: container.mu guards one container, and each other part has one lock of its own. escrow.putting is taken before
// container.mu.
package daemon
