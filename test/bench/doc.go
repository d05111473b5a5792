// Command bench measures container runtimes over their CRI sockets, with the public API alone: a private Berth,
// a private containerd, and any that run already, side by side in one run, in turns. docs/benchmarks.md says
// what each row is.
package main
