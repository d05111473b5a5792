// Package registrytest is a registry on loopback and a builder of images, for tests, the demo and the benchmarks, so
// that these need no network. The registry speaks HTTP or HTTPS, can ask for credentials (basic, bearer tokens, refresh
// tokens), and can fail as registries do: down, slow, cut off in the middle of a blob, corrupted, throttled.
//
// The package does not import testing.
package registrytest
