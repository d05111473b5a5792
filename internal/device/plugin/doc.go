// Package plugin is a device plugin for device nodes of the host, selected by patterns, and for devices of CDI
// specifications. A configuration file lists its resources. A kubelet, or another device manager, allocates the
// devices.
package plugin
