// Package config is berthd's configuration: TOML files over defaults, and flags over both. default.toml documents
// every key and holds its default; flags and docs/configuration.md are made from it, so that the three cannot differ.
package config
