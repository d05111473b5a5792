//go:build race

package client_test

// The race detector is wanted in the keeper too. It cannot be linked statically.
func init() {
	race = true
}
