package model

import "time"

// Volume is a named volume of the node.
type Volume struct {
	Name       string
	Path       string // its directory on the node
	CreatedAt  time.Time
	Containers []string // IDs of those that use it, ended ones included, sorted
}
