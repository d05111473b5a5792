// Package faults kills the daemon and the keeper at random moments, reboots the node, and holds Berth to its word:
// containers live on, nothing that was acknowledged is lost, and after the last pod nothing is left on the machine.
//
// Files of the root are spoilt one by one: a sample, and all with BERTH_LONG=1.
//
// BERTH_KILLS says how often the daemon is killed (100), and BERTH_FAULT_SEED repeats a run.
package faults
