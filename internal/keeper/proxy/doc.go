// Package proxy is a process of the keeper's that stands for a container of a sandbox, such as one of gVisor. The
// container's own processes are none of the kernel's: only the runtime can tell when and how they end. The proxy asks
// it, and ends with the container's exit code. So the keeper, berthd and the kernel treat the container as any other:
// there is a pidfd of it in escrow, and its exit code is known when a keeper was killed meanwhile.
//
// The proxy begins when the container is created, and waits for a byte of the keeper's. Then it changes its command
// line, by executing itself, and calls the runtime's start with the container's standard streams. It tells the keeper
// how that has ended. After that it calls the runtime's wait, and ends with the exit code that this prints. Signals
// that it is sent it passes on through the runtime's kill. SIGKILL and SIGSTOP cannot be passed on: the keeper calls
// the runtime itself for these.
//
// The container of one of containerd's shims has a proxy as well, and so has each exec in it (shim.c). It speaks to the
// shim's socket: it makes the calls Start and Wait, and Kill for signals. It also copies the container's input, since a
// shim is to be told of its end, and tells it of new sizes of the terminal. The proxy of a pod's first container copies
// what the shim writes to its log to the keeper's standard error, and answers the events that the shim sends.
//
// If the sandbox is gone, the proxy ends with 137, as a container that was killed. If the runtime's wait fails again
// and again while the sandbox lives, it ends with 255.
//
// It is a program in C for the same reasons as package podinit: a container costs some pages of memory.
package proxy
