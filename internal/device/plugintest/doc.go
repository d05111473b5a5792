// Package plugintest is a device plugin for tests: it does what it is told, misbehaving included.
package plugintest
