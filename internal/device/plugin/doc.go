// Package plugin is a device plugin for plain devices: device nodes of the host, by pattern, and devices of CDI
// specifications. A file says what it offers; a kubelet, or another device manager, hands it out.
package plugin
