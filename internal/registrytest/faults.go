package registrytest

import (
	"net/http"
	"strings"
)

// Faults are the ways in which a registry fails. The zero value is a sound registry.
type Faults struct {
	Path string // only requests whose path has this in it; empty: all

	Down bool // every connection is closed without an answer

	Status      int    // this status is the answer,
	StatusTimes int    // so many times; 0: always
	RetryAfter  string // with this Retry-After header

	BytesPerSecond int   // of each blob; 0: no limit
	CutAfter       int64 // the connection of a blob is closed after this many bytes of the answer; 0: never
	StallAfter     int64 // no further byte comes after this many, and the connection stays; 0: never
	Times          int   // how often CutAfter and StallAfter happen; 0: always
	NoRange        bool  // requests for a part are answered with the whole

	Corrupt string // the blob of this digest has a wrong bit

	ManifestSize int64 // a manifest of this many bytes is the answer to every request for a manifest
}

// SetFaults makes the registry fail in these ways from now on.
func (r *Registry) SetFaults(f Faults) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = f
}

// fault is what goes wrong with one request.
type fault struct {
	down, noRange, corrupt, stall bool
	status, bytesPerSecond        int
	retryAfter                    string
	limit, manifestSize           int64
}

// take says how a request fails, and counts it. The registry's lock is held.
func (f *Faults) take(req *http.Request) fault {
	var out fault
	if !strings.Contains(req.URL.Path, f.Path) {
		return out
	}
	out.down = f.Down
	if f.Status != 0 {
		out.status, out.retryAfter = f.Status, f.RetryAfter
		if f.StatusTimes > 0 {
			if f.StatusTimes--; f.StatusTimes == 0 {
				f.Status = 0
			}
		}
		return out
	}
	if strings.Contains(req.URL.Path, "/manifests/") {
		out.manifestSize = f.ManifestSize
	}
	digest, blob := blobPath(req)
	if !blob || req.Method != http.MethodGet {
		return out
	}
	out.bytesPerSecond, out.noRange, out.corrupt = f.BytesPerSecond, f.NoRange, digest == f.Corrupt
	out.limit = f.CutAfter
	if f.StallAfter > 0 {
		out.limit, out.stall = f.StallAfter, true
	}
	if out.limit > 0 && f.Times > 0 {
		if f.Times--; f.Times == 0 {
			f.CutAfter, f.StallAfter = 0, 0
		}
	}
	return out
}
