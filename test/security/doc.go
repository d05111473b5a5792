// Package security attacks a node. Each test is one published hole of a container runtime, named by its number,
// and runs the attack for real: images from a hostile registry, containers whose programs race the runtime,
// other users of the node. The comment of a test says what the hole was, and how the test was seen to fail on a build
// without the defence. docs/security.md lists them all, and a test holds the list to them.
//
// Attacks that race go on for some seconds each; with BERTH_LONG=1 in the environment for some minutes each.
package security
