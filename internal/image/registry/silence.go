package registry

import (
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/distribution/reference"
)

const (
	// longWait is how long a host may keep a request waiting, and fail, and still be asked first.
	longWait = time.Second
	// silentFor is how long all pulls ask a host last that has not answered one of them.
	silentFor = time.Minute
	// keepSilent is how long after that it is known, so that one pull at a time finds out whether it answers again.
	keepSilent = 10 * time.Minute
)

// silence knows the endpoints that have kept a request waiting and not answered, of all pulls of a client. Without it,
// each pull would wait for a mirror that is switched off: half a minute for the connection.
type silence struct {
	mu    sync.Mutex
	until map[silent]time.Time
}

// silent is what has not answered. A mirror that takes connections and does not answer may itself wait for the registry
// that an image is from: then the other registries' images are not concerned.
type silent struct {
	at       endpoint
	registry string // of the image; empty: there is no connection to the endpoint
}

// note is told that an endpoint does not answer.
func (s *silence) note(what silent, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until == nil {
		s.until = map[silent]time.Time{}
	}
	for other, until := range s.until { // names come from references to images, and so are any number
		if now.Sub(until) > keepSilent {
			delete(s.until, other)
		}
	}
	s.until[what] = now.Add(silentFor)
}

// last tells whether an endpoint is to be asked last for images of a registry. When its time is over, the first caller
// is to ask it, and the others wait for what comes of that: they ask it last for as long again, or until it answers.
func (s *silence) last(at endpoint, registry string, now time.Time) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, what := range []silent{{at, ""}, {at, registry}} {
		until, ok := s.until[what]
		switch {
		case !ok:
		case now.Before(until):
			last = true
		default:
			s.until[what] = now.Add(silentFor)
		}
	}
	return last
}

// answered is told that an endpoint has given what it was asked for.
func (s *silence) answered(at endpoint, registry string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.until, silent{at, ""})
	delete(s.until, silent{at, registry})
}

// answered notes that a host has given what it was asked for.
func (r *Repository) answered(h docker.RegistryHost) {
	r.client.silence.answered(endpointOf(h), reference.Domain(r.name))
}

// waited notes a host that has failed without an answer, and has taken long for it. Each request of a pull would wait
// for it: to a mirror that is switched off, half a minute for each manifest and layer.
func (r *Repository) waited(host docker.RegistryHost, since time.Time, f *failure) {
	if f.unanswered && time.Since(since) >= longWait {
		r.askLast(host, "registry host does not answer, it is asked last for the rest of this image, and for others for a "+
			"minute", f)
	}
}

// askLast has a host asked after the others. event is what the log says of it.
func (r *Repository) askLast(host docker.RegistryHost, event string, f *failure) {
	if len(r.hosts) == 1 {
		return
	}
	at := endpointOf(host)
	what := silent{at: at}
	if !f.unreachable {
		what.registry = reference.Domain(r.name)
	}
	r.client.silence.note(what, time.Now())
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.silent[at] {
		r.silent[at] = true
		r.log.Warn(event, "host", host.Host, "error", f)
	}
}

// inOrder are hosts in the order in which they are asked: those that did not answer come last.
func (r *Repository) inOrder(hosts []docker.RegistryHost) []docker.RegistryHost {
	if len(hosts) == 1 {
		return hosts
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	last := map[endpoint]bool{}
	for _, h := range hosts {
		at := endpointOf(h)
		last[at] = r.silent[at] || r.client.silence.last(at, reference.Domain(r.name), time.Now())
	}
	hosts = slices.Clone(hosts)
	slices.SortStableFunc(hosts, func(a, b docker.RegistryHost) int {
		switch a, b := last[endpointOf(a)], last[endpointOf(b)]; {
		case a == b:
			return 0
		case a:
			return 1
		}
		return -1
	})
	return hosts
}
