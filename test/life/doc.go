// Package life holds what Berth promises of pods and containers, as tests that speak to a whole node over the CRI.
package life
