// Program vm runs suites in a virtual machine: Debian's cloud kernel, systemd, cgroup v2 alone, AppArmor, and ext4 with
// project quotas. qemu emulates the processor, so it needs no KVM and takes its time.
//
// The root image is made from Debian packages by mmdebstrap and kept; a run changes a snapshot of it that ends
// with the run. The module, Go and its caches are shared read-only with the guest, where they lie at the same paths.
// An agent (guest) runs commands there; package wire is what it speaks. Packages of tests are compiled on the host
// and run in the guest, each in its own directory.
package main
