package registrytest

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// rawManifests are manifests that may be anything, by the path of their requests.
type rawManifests struct{ sync.Map }

type rawManifest struct {
	mediaType, digest string
	content           []byte
}

// PutRaw makes any bytes the answer to requests for a manifest by a reference, and, where that is a tag,
// by their digest. Nothing is checked: a reference that is a digest is said to be that of the bytes, even if it is not.
func (r *Registry) PutRaw(repo, reference, mediaType string, content []byte) {
	m := rawManifest{mediaType: mediaType, digest: reference, content: content}
	at := "/v2/" + repo + "/manifests/"
	if !strings.Contains(reference, ":") {
		m.digest = digestOf(content)
		r.raw.Store(at+m.digest, m)
	}
	r.raw.Store(at+reference, m)
}

// serve tells whether the request was for one of them.
func (raw *rawManifests) serve(w http.ResponseWriter, req *http.Request) bool {
	found, ok := raw.Load(req.URL.Path)
	if !ok || req.Method != http.MethodGet && req.Method != http.MethodHead {
		return false
	}
	m := found.(rawManifest)
	w.Header().Set("Content-Type", m.mediaType)
	w.Header().Set("Docker-Content-Digest", m.digest)
	w.Header().Set("Content-Length", strconv.Itoa(len(m.content)))
	if req.Method == http.MethodGet {
		_, _ = w.Write(m.content)
	}
	return true
}
