package kubelet

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// apiserver is as much of an API server as a kubelet needs: it stores objects, lists, watches and patches them,
// and gives out service account tokens. There is no admission, no defaulting and no validation.
type apiserver struct {
	server *httptest.Server

	mu      sync.Mutex // guards what follows
	objects map[string]object
	history []change
	changed chan struct{} // closed and replaced with each change
}

type object map[string]any

// change is one event of a watch. Its place in the history, counted from 1, is the object's resource version.
type change struct {
	kind   string // ADDED, MODIFIED, DELETED
	key    string
	object object
}

// startAPI starts an API server that ends with the test.
func startAPI(t *testing.T) *apiserver {
	a := &apiserver{objects: map[string]object{}, changed: make(chan struct{})}
	a.server = httptest.NewServer(a)
	t.Cleanup(func() {
		a.server.CloseClientConnections()
		a.server.Close()
	})
	return a
}

// kubeconfig writes a file that leads a client to the server.
func (a *apiserver) kubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	config := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":%q}}],"users":[{"name":"u","user":{"token":"t"}}],
"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}]}`, a.server.URL)
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// request is what a URL asks for: /api/v1/namespaces/NS/RESOURCE/NAME/SUB, or the like of a group.
type request struct {
	version, namespace, resource, name, sub string
}

func parse(path string) request {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	var r request
	n := min(2, len(parts))
	if parts[0] == "apis" {
		n = min(3, len(parts))
	}
	r.version, parts = strings.Join(parts[1:n], "/"), parts[n:]
	if len(parts) > 2 && parts[0] == "namespaces" {
		r.namespace, parts = parts[1], parts[2:]
	}
	for i, field := range []*string{&r.resource, &r.name, &r.sub} {
		if i < len(parts) {
			*field = parts[i]
		}
	}
	return r
}

// key is where an object is stored. Namespaces come last, so that a list over all of them is one prefix.
func (r request) key() string { return r.resource + "/" + r.name + "/" + r.namespace }

func (a *apiserver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r := parse(req.URL.Path)
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	switch {
	case r.sub == "token" && req.Method == http.MethodPost:
		a.token(w, r, body)
	case r.name == "" && req.Method == http.MethodGet && req.URL.Query().Get("watch") != "":
		a.watch(w, req, r)
	case r.name == "" && req.Method == http.MethodGet:
		a.list(w, req, r)
	case req.Method == http.MethodPost, req.Method == http.MethodPut:
		var o object
		if err := json.Unmarshal(body, &o); err != nil {
			failure(w, http.StatusBadRequest, err.Error())
			return
		}
		if r.name == "" {
			r.name, _ = o.meta()["name"].(string)
		}
		reply(w, http.StatusCreated, a.put(r, o))
	case req.Method == http.MethodPatch:
		a.patch(w, r, body)
	case req.Method == http.MethodDelete:
		reply(w, http.StatusOK, a.remove(r))
	default:
		a.mu.Lock()
		o := a.objects[r.key()]
		a.mu.Unlock()
		if o == nil {
			failure(w, http.StatusNotFound, r.key()+" not found")
			return
		}
		reply(w, http.StatusOK, o)
	}
}

func reply(w http.ResponseWriter, code int, what any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(what)
}

func failure(w http.ResponseWriter, code int, text string) {
	reason := map[int]string{http.StatusNotFound: "NotFound", http.StatusBadRequest: "BadRequest"}[code]
	reply(w, code, object{
		"apiVersion": "v1", "kind": "Status", "status": "Failure", "message": text, "reason": reason, "code": code,
	})
}

func (o object) meta() map[string]any {
	if m, ok := o["metadata"].(map[string]any); ok {
		return m
	}
	m := map[string]any{}
	o["metadata"] = m
	return m
}

// copied is a deep copy: what was handed out is not changed.
func (o object) copied() object {
	data, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	var c object
	if err := json.Unmarshal(data, &c); err != nil {
		panic(err)
	}
	return c
}

// put stores an object, new or not.
func (a *apiserver) put(r request, o object) object {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.store(r, o)
}

// store is put for a caller that holds the lock.
func (a *apiserver) store(r request, o object) object {
	o = o.copied()
	kind := "ADDED"
	if a.objects[r.key()] != nil {
		kind = "MODIFIED"
	}
	meta := o.meta()
	meta["name"] = r.name
	if r.namespace != "" {
		meta["namespace"] = r.namespace
	}
	if meta["uid"] == nil {
		meta["uid"] = fmt.Sprintf("uid-%d", len(a.history)+1)
	}
	if meta["creationTimestamp"] == nil {
		meta["creationTimestamp"] = time.Now().UTC().Format(time.RFC3339)
	}
	meta["resourceVersion"] = strconv.Itoa(len(a.history) + 1)
	a.objects[r.key()] = o
	a.append(change{kind, r.key(), o})
	return o
}

func (a *apiserver) append(c change) {
	a.history = append(a.history, c)
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *apiserver) remove(r request) object {
	a.mu.Lock()
	defer a.mu.Unlock()
	if o := a.objects[r.key()]; o != nil {
		delete(a.objects, r.key())
		o = o.copied()
		o.meta()["resourceVersion"] = strconv.Itoa(len(a.history) + 1)
		a.append(change{"DELETED", r.key(), o})
	}
	return object{"apiVersion": "v1", "kind": "Status", "status": "Success"}
}

// patch applies a strategic merge patch, which is what kubelets send.
func (a *apiserver) patch(w http.ResponseWriter, r request, patch []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.objects[r.key()]
	if o == nil {
		failure(w, http.StatusNotFound, r.key()+" not found")
		return
	}
	var changes object
	if err := json.Unmarshal(patch, &changes); err != nil {
		failure(w, http.StatusBadRequest, err.Error())
		return
	}
	patched := o.copied()
	merge(patched, changes)
	reply(w, http.StatusOK, a.store(r, patched))
}

// mergeKeys are the lists in a status that a strategic merge patch merges, with the key that tells their items apart.
// All others it replaces.
var mergeKeys = map[string]string{"conditions": "type", "addresses": "type", "podIPs": "ip", "hostIPs": "ip"}

// merge applies a strategic merge patch to a part of an object.
func merge(into, patch map[string]any) {
	for name, value := range patch {
		if strings.HasPrefix(name, "$") { // an order, or a directive for the list's owner
			continue
		}
		key := mergeKeys[name]
		switch value := value.(type) {
		case nil:
			delete(into, name)
		case map[string]any:
			below, ok := into[name].(map[string]any)
			if !ok {
				below = map[string]any{}
			}
			merge(below, value)
			into[name] = below
		case []any:
			if key == "" {
				into[name] = value
				continue
			}
			list, _ := into[name].([]any)
			for _, item := range value {
				list = mergeItem(list, key, item.(map[string]any))
			}
			into[name] = list
		default:
			into[name] = value
		}
	}
}

// mergeItem changes, adds or removes the item of a list that a patch's item names.
func mergeItem(list []any, key string, patch map[string]any) []any {
	at := slices.IndexFunc(list, func(item any) bool { return item.(map[string]any)[key] == patch[key] })
	switch {
	case patch["$patch"] == "delete" && at >= 0:
		return slices.Delete(list, at, at+1)
	case patch["$patch"] == "delete":
		return list
	case at < 0:
		return append(list, patch)
	}
	merge(list[at].(map[string]any), patch)
	return list
}

// token gives a service account token that says whose it is.
func (a *apiserver) token(w http.ResponseWriter, r request, body []byte) {
	var o object
	if err := json.Unmarshal(body, &o); err != nil {
		failure(w, http.StatusBadRequest, err.Error())
		return
	}
	o["status"] = map[string]any{
		"token":               "token of " + r.namespace + "/" + r.name,
		"expirationTimestamp": time.Now().Add(time.Hour).UTC().Format(time.RFC3339),
	}
	reply(w, http.StatusCreated, o)
}

// wanted says whether an object is among those that a list or watch is for.
func (r request) wanted(req *http.Request, key string) bool {
	parts := strings.Split(key, "/")
	if parts[0] != r.resource || r.namespace != "" && parts[2] != r.namespace {
		return false
	}
	name, ok := strings.CutPrefix(req.URL.Query().Get("fieldSelector"), "metadata.name=")
	return !ok || name == parts[1]
}

// kinds are those of the resources that a kubelet lists.
var kinds = map[string]string{
	"pods": "Pod", "nodes": "Node", "services": "Service", "configmaps": "ConfigMap", "secrets": "Secret",
	"runtimeclasses": "RuntimeClass", "csidrivers": "CSIDriver",
}

func (a *apiserver) list(w http.ResponseWriter, req *http.Request, r request) {
	a.mu.Lock()
	items := []object{}
	for key, o := range a.objects {
		if r.wanted(req, key) {
			items = append(items, o)
		}
	}
	version := strconv.Itoa(len(a.history))
	a.mu.Unlock()
	reply(w, http.StatusOK, object{
		"apiVersion": r.version, "kind": kinds[r.resource] + "List", "items": items,
		"metadata": map[string]any{"resourceVersion": version},
	})
}

func (a *apiserver) watch(w http.ResponseWriter, req *http.Request, r request) {
	flusher, ok := w.(http.Flusher)
	if !ok {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	query := req.URL.Query()
	at, _ := strconv.Atoi(query.Get("resourceVersion"))
	if query.Get("sendInitialEvents") == "true" {
		at = 0
	}
	a.mu.Lock()
	first := len(a.history)
	a.mu.Unlock()
	for initial := query.Get("sendInitialEvents") == "true"; ; {
		a.mu.Lock()
		changes, changed := a.history[min(at, len(a.history)):], a.changed
		a.mu.Unlock()
		for _, c := range changes {
			at++
			if r.wanted(req, c.key) {
				if encoder.Encode(object{"type": c.kind, "object": c.object}) != nil {
					return
				}
			}
		}
		if initial && at >= first {
			initial = false
			meta := map[string]any{
				"resourceVersion": strconv.Itoa(at), "annotations": map[string]any{"k8s.io/initial-events-end": "true"},
			}
			mark := object{"apiVersion": r.version, "kind": kinds[r.resource], "metadata": meta}
			if encoder.Encode(object{"type": "BOOKMARK", "object": mark}) != nil {
				return
			}
		}
		flusher.Flush()
		select {
		case <-changed:
		case <-req.Context().Done():
			return
		}
	}
}
