// Package plugintest is a device plugin for tests. A test controls its answers, including wrong ones.
package plugintest
