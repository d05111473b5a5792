// Package syscalls holds the number of system calls that a pod's start and an exec take. Unlike time it does not depend
// on what else the machine does.
package syscalls
