package dashboard

import (
	"io/fs"
	"net/http"
	"path"
	"regexp"
	"strings"
	"testing"
)

// TestOnlyTheLoopbackIsListenedOn: an address that other machines reach is refused, and the error says what to give.
func TestOnlyTheLoopbackIsListenedOn(t *testing.T) {
	for text, want := range map[string]string{
		"127.0.0.1:0": "127.0.0.1:0", "127.9.9.9:80": "127.9.9.9:80", "[::1]:8080": "[::1]:8080",
		"localhost:1": "127.0.0.1:1", "[::ffff:127.0.0.1]:5": "127.0.0.1:5",
	} {
		if got, err := ParseAddress(text); err != nil || got.String() != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"0.0.0.0:80": "loopback", ":80": "loopback", "[::]:80": "loopback", "192.168.1.2:80": "ssh -L",
		"[::ffff:8.8.8.8]:80": "loopback", "example.com:80": "no IP address", "127.0.0.1": "no address and port",
		"127.0.0.1:http": "no number", "127.0.0.1:65536": "no number", "[fe80::1%eth0]:1": "loopback", "": "no address",
	} {
		if _, err := ParseAddress(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestRequestsThatAreNotThePagesAreRefused: each row is one attack, and nothing else is wrong with its request.
func TestRequestsThatAreNotThePagesAreRefused(t *testing.T) {
	s := New(newFake(1).connection(), "test")
	if w := ask(s, "/api/pods", nil); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "web-0") {
		t.Fatalf("the page's own request: %d %s", w.Code, w.Body)
	}
	with := func(secret string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+secret) }
	}
	host := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	site := func(name string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", name) }
	}
	method := func(name string) func(*http.Request) { return func(r *http.Request) { r.Method = name } }
	for name, attack := range map[string]struct {
		edit func(*http.Request)
		code int
	}{
		"without the secret":        {func(r *http.Request) { r.Header.Del("Authorization") }, http.StatusUnauthorized},
		"with the secret's start":   {with(s.token[:20]), http.StatusUnauthorized},
		"with an empty secret":      {with(""), http.StatusUnauthorized},
		"with another run's secret": {with(newToken()), http.StatusUnauthorized},
		"with the secret in a cookie": {func(r *http.Request) {
			r.Header.Del("Authorization")
			r.AddCookie(&http.Cookie{Name: "token", Value: s.token})
		}, http.StatusUnauthorized},
		"with the secret in the query": {func(r *http.Request) {
			r.Header.Del("Authorization")
			r.URL.RawQuery = "token=" + s.token
		}, http.StatusUnauthorized},
		"of a rebound name":          {host("evil.example:1234"), http.StatusForbidden},
		"of a name like localhost":   {host("localhost.evil.example"), http.StatusForbidden},
		"of a name like an address":  {host("127.0.0.1.evil.example:1234"), http.StatusForbidden},
		"of an address of a network": {host("192.168.1.2:1234"), http.StatusForbidden},
		"without a host":             {host(""), http.StatusForbidden},
		"of another site":            {site("cross-site"), http.StatusForbidden},
		"of another port":            {site("same-site"), http.StatusForbidden},
		"that posts":                 {method(http.MethodPost), http.StatusMethodNotAllowed},
		"that deletes":               {method(http.MethodDelete), http.StatusMethodNotAllowed},
		"that asks what is allowed":  {method(http.MethodOptions), http.StatusMethodNotAllowed},
		"with a body":                {func(r *http.Request) { r.ContentLength = 5 }, http.StatusBadRequest},
		"for what is not there":      {func(r *http.Request) { r.URL.Path = "/api/secrets" }, http.StatusNotFound},
	} {
		w := ask(s, "/api/pods", attack.edit)
		if w.Code != attack.code || strings.Contains(w.Body.String(), "web-0") {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
		if w.Header().Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: another page may read the answer", name)
		}
	}
	// The page itself is not served under a rebound name either, or its script would be of that name's origin.
	if w := ask(s, "/", func(r *http.Request) { r.Host = "evil.example" }); w.Code != http.StatusForbidden {
		t.Errorf("the page under another name: %d", w.Code)
	}
}

// TestEveryPathOfTheDataNeedsTheSecret: also those that come later.
func TestEveryPathOfTheDataNeedsTheSecret(t *testing.T) {
	s := New(newFake(1).connection(), "test")
	for _, path := range []string{"/api/node", "/api/pods", "/api/pods/x", "/api/pods/x/timeline",
		"/api/containers/x/log?tail=1", "/api/images", "/api/volumes", "/api/devices", "/api/space", "/api/events", "/api/",
		"/api/x", "//api/pods", "/assets/../api/pods"} {
		w := ask(s, path, func(r *http.Request) { r.Header.Del("Authorization") })
		if w.Code != http.StatusUnauthorized && w.Code/100 != 3 && w.Code != http.StatusNotFound {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

// TestEveryResponseForbidsWhatThePageDoesNotNeed: files, data and errors.
func TestEveryResponseForbidsWhatThePageDoesNotNeed(t *testing.T) {
	s := New(newFake(1).connection(), "test")
	for _, path := range []string{"/", "/assets/app.js", "/nothing", "/api/pods", "/api/nothing"} {
		w := ask(s, path, nil)
		for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
			"Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "Cross-Origin-Resource-Policy": "same-origin"} {
			if got := w.Header().Get(name); got != want {
				t.Errorf("%s: %s is %q", path, name, got)
			}
		}
		policy := w.Header().Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "frame-ancestors 'none'", "script-src 'self';",
			"base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'", "trusted-types 'none'"} {
			if !strings.Contains(policy, want) {
				t.Errorf("%s: the policy has no %s: %s", path, want, policy)
			}
		}
		if strings.Contains(policy, "unsafe") || strings.Contains(policy, "http") {
			t.Errorf("%s: %s", path, policy)
		}
	}
}

// TestThePageHasNothingOfOthers: no file of it names another host, has a script or a style within HTML, or takes text
// for HTML. The policy refuses all of that in browsers that know it.
func TestThePageHasNothingOfOthers(t *testing.T) {
	forbidden := regexp.MustCompile(`(?i)innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc|` +
		`\beval\(|new Function|javascript:|\son[a-z]+="|<script>|<style|\sstyle="|https?://|"//`)
	files := 0
	err := fs.WalkDir(assets, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		files++
		data, err := assets.ReadFile(name)
		text := strings.ReplaceAll(string(data), `xmlns="http://www.w3.org/2000/svg"`, "")
		if found := forbidden.FindString(text); found != "" {
			t.Errorf("%s has %q", name, found)
		}
		if types[path.Ext(name)] == "" {
			t.Errorf("%s has no media type: it is not served", name)
		}
		return err
	})
	if err != nil || files < 10 {
		t.Errorf("%d files, %v", files, err)
	}
}
