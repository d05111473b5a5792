package registrytest

import (
	"cmp"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// Faults are the ways in which a registry fails. The zero value is a sound registry.
type Faults struct {
	Path string // only requests whose path has this in it; empty: all

	Down bool // every connection is closed without an answer

	Status      int    // this status is the answer,
	StatusTimes int    // so many times; 0: always
	RetryAfter  string // with this Retry-After header
	Message     string // and this message in the body, which a HEAD does not get; empty: one that says nothing

	BytesPerSecond int           // of each answer with a blob, and so of its connection; 0: no limit
	Delay          time.Duration // before each answer with a blob
	CutAfter       int64         // the connection of a blob is closed after this many bytes of the answer; 0: never
	CutWithin      int64         // the same after a random number of bytes below this one
	StallAfter     int64         // no further byte comes after this many, and the connection stays; 0: never
	Times          int           // how often CutAfter and StallAfter happen; 0: always
	NoRange        bool          // requests for a part are answered with the whole
	Range          Lie           // what is wrong with answers to requests for a part
	AtOnce         int           // more requests for blobs at a time get status 429, with RetryAfter; 0: no limit

	Corrupt string // the blob of this digest has a wrong bit

	ManifestSize int64 // a manifest of this many bytes is the answer to every request for a manifest
}

// Lie is what is wrong with an answer to a request for a part of a blob.
type Lie string

const (
	WrongStart  Lie = "start"  // it is another part, and says so
	WrongBytes  Lie = "bytes"  // it is another part, and does not say so
	WrongSize   Lie = "size"   // the blob has another size
	WrongLength Lie = "length" // Content-Length is not what Content-Range says
	TooLong     Lie = "long"   // it is longer than was asked for, and says so
	NoHeader    Lie = "header" // it does not say which part it is
	Encoded     Lie = "encoded"
	WholeLater  Lie = "whole" // only the first part is sent as one, and the whole blob in place of the others
	Shorter     Lie = "short" // it is the first half: no lie, servers may do so
)

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
	retryAfter, message           string
	limit, manifestSize           int64
	delay                         time.Duration
	lie                           Lie
}

// take says how a request fails, and counts it. The registry's lock is held.
func (f *Faults) take(req *http.Request) fault {
	var out fault
	if !strings.Contains(req.URL.Path, f.Path) {
		return out
	}
	out.down = f.Down
	if f.Status != 0 {
		out.status, out.retryAfter, out.message = f.Status, f.RetryAfter, cmp.Or(f.Message, "made to fail")
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
	out.delay, out.lie = f.Delay, f.Range
	out.limit = f.CutAfter
	if f.CutWithin > 0 {
		out.limit = 1 + rand.Int64N(f.CutWithin)
	}
	if f.StallAfter > 0 {
		out.limit, out.stall = f.StallAfter, true
	}
	if out.limit > 0 && f.Times > 0 {
		if f.Times--; f.Times == 0 {
			f.CutAfter, f.CutWithin, f.StallAfter = 0, 0, 0
		}
	}
	return out
}
