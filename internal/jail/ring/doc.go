// Package ring carries a stream of bytes from one process to another through memory that both have mapped:
// the writer fills one half of the memory while the reader works on the other, and a socket tells each of them
// which half is its own.
//
// A layer passes three such streams, and through pipes it cost a quarter more processor time than within one process:
// each byte is copied into the kernel and out again, and each 64 KiB wake a process. A ring copies nothing and wakes
// its reader once in a MiB.
//
// One of the two processes is not trusted. The memory is sealed against a change of its size, which would be a SIGBUS
// to the other side, and numbers that come through the socket are checked. What the reader sees can still change
// under its eyes if the writer is hostile: a reader that judges bytes copies them first.
package ring
