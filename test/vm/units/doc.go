// Package units tries what make install installs, under the systemd of the virtual machine: the units of berthd and
// the keeper, systemd's store of file descriptors, and the cgroups that systemd makes. Elsewhere its tests are skipped.
package units
