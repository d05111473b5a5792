// Package berthv1 is Berth's own API, for what the Container Runtime Interface lacks: pulls that report their progress,
// execs as a given user, signals, devices of device plugins, and named volumes.
package berthv1
