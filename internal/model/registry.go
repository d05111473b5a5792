package model

import "errors"

// ErrRegistryUnavailable is wrapped by errors of pulls for which a registry has not answered, or has answered that it
// cannot (5xx). A registry that is asked too often is another matter.
var ErrRegistryUnavailable = errors.New("the registry is unavailable")
