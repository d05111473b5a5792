// Package smoke is what has to hold on a machine with systemd, cgroup v2 alone and AppArmor, tried within a few
// minutes: its tests run in the virtual machine (make vm-smoke) and are skipped elsewhere.
package smoke
