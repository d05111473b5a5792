// Package faults kills the daemon and the keeper at random moments, reboots the node, and holds Berth to its word:
// containers live on, nothing that was acknowledged is lost, and after the last pod nothing is left on the machine.
//
// Files of the root are spoilt one by one: a sample, and all with BERTH_LONG=1.
//
// A disk is full at each step of a life, on three file systems, and on six with BERTH_LONG=1. The power of a disk
// is cut, BERTH_POWER times on ext4 and on xfs (2).
//
// Each test is a scenario that counts what it looks at (count): `make faults` runs them for hours, in larger sizes,
// and prints a table.
//
// BERTH_KILLS says how often a scenario of timed kills does so (3 to 8, and 40 where counts are written),
// and BERTH_FAULT_SEED repeats a run.
package faults
