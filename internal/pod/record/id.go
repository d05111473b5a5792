package record

import (
	"crypto/rand"
	"encoding/hex"
)

// NewID is 64 hexadecimal digits, as kubelets and cAdvisor expect of a runtime.
func NewID() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails, by its contract
	return hex.EncodeToString(b[:])
}

// ShortID is how messages name a pod or container: the first 12 digits of its ID.
func ShortID(id string) string {
	if len(id) > 12 {
		return id[:12]
	}
	return id
}
