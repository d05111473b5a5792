// Command machine runs a command, such as all tests, and fails if the machine is not afterwards what it was before:
// owners and modes of devices, sysctls, cgroups, mounts, network namespaces, interfaces, tables of netfilter,
// loop devices, modules, files, and processes. It prints each difference.
//
//	machine [-wait 1m] [-v] command [argument...]
//
// The command gets a directory of its own for temporary files, which must be empty at the end, and a mark
// in its environment, by which its processes are known.
//
// Others may use the machine at the same time. What they have made is told from what the command has left: a difference
// that names a node that a process without the mark belongs to is theirs; so are the switches and tables that nodes
// share, while one of theirs runs or ran at the beginning; and a difference counts only if it stays for -wait.
// With -v theirs are printed too.
package main
