// Package tomlfile decodes files in TOML that may have no unknown keys, and says what is wrong in one by file, line and
// key, in the words of TOML and not of Go.
package tomlfile
