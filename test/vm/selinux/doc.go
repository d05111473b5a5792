// Package selinux is what has to hold on a machine with SELinux: labels of pods, of their files and of what they run,
// and a policy that keeps them apart. Its tests run in the virtual machine (make vm-selinux) and are skipped elsewhere.
package selinux
