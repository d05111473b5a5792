package dashboard

import (
	"crypto/rand"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// policy lets a browser load the page's own files, ask its own server, and do nothing else. Trusted types are off
// altogether, so that no script can turn text into elements.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// headers are those of every response.
var headers = map[string]string{
	"Content-Security-Policy":      policy,
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY",
	"Referrer-Policy":              "no-referrer",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Permissions-Policy":           "camera=(), geolocation=(), microphone=()",
	"Cache-Control":                "no-store",
}

// newToken is a secret of 128 bits.
func newToken() string { return rand.Text() }

// guard decides which requests are answered. next has the files of the page, which are no secret, and below /api/ the
// data.
//
// The secret is in a header that the page's script sets, and not in a cookie: a browser sends the cookies of 127.0.0.1
// to all ports, also to the server of another user of this machine, and with requests of any page.
func guard(token string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range headers {
			w.Header().Set(name, value)
		}
		switch {
		case r.Method != http.MethodGet:
			w.Header().Set("Allow", http.MethodGet)
			refuse(w, http.StatusMethodNotAllowed, "the dashboard only shows: GET is the only method")
		case r.ContentLength != 0:
			w.Header().Set("Connection", "close") // the body is not read
			refuse(w, http.StatusBadRequest, "a request to the dashboard has no body")
		case !loopbackHost(r.Host):
			// Another site's name can be made to lead to 127.0.0.1 (DNS rebinding). Its page would have the dashboard's
			// origin.
			refuse(w, http.StatusForbidden, "the dashboard is served as localhost and 127.0.0.1, and not under another name")
		case !strings.HasPrefix(r.URL.Path, "/api/"):
			next.ServeHTTP(w, r)
		case r.Header.Get("Sec-Fetch-Site") != "" && r.Header.Get("Sec-Fetch-Site") != "same-origin":
			refuse(w, http.StatusForbidden, "another page asks for data of the dashboard")
		case !authorized(r, token):
			refuse(w, http.StatusUnauthorized, "the address lacks its secret, or has that of another run of `berth dashboard`: "+
				"open the address that the command has printed")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// loopbackHost says whether the Host header names this machine's loopback. The port does not matter: it may be one
// that ssh forwards.
func loopbackHost(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	if name == "localhost" {
		return true
	}
	address, err := netip.ParseAddr(name)
	return err == nil && address.IsLoopback()
}

func authorized(r *http.Request, token string) bool {
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return ok && subtle.ConstantTimeCompare([]byte(given), []byte(token)) == 1
}
