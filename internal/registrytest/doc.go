// Package registrytest is a registry of images on loopback and a builder of images, for tests, the demo and the
// benchmarks: nothing that they pull comes from a network. The registry speaks HTTP or HTTPS, asks for credentials
// where told to (basic, bearer tokens, refresh tokens), and can be made to fail in the ways registries do: down, slow,
// cut in the middle of a blob, corrupted, throttled.
//
// The package does not import testing.
package registrytest
