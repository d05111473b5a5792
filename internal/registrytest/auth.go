package registrytest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// authentication is what a registry asks of its clients.
type authentication struct {
	scheme         string // "", "basic", "bearer"
	user, password string
	refresh        string
	static         string // a token that is always good
	realm          string

	uses int64 // of each token; 0: any number

	tokens sync.Map // token -> scope
	used   sync.Map // token -> *atomic.Int64
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

func (a *authentication) knows(user, password string) bool {
	return a.user != "" && same(user, a.user) && same(password, a.password)
}

func (a *authentication) allows(req *http.Request) bool {
	switch a.scheme {
	case "basic":
		user, password, ok := req.BasicAuth()
		return ok && a.knows(user, password)
	case "bearer":
		token, ok := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer ")
		if !ok {
			return false
		}
		if a.static != "" && same(token, a.static) {
			return true
		}
		scope, ok := a.tokens.Load(token)
		if used, _ := a.used.LoadOrStore(token, new(atomic.Int64)); a.uses != 0 && used.(*atomic.Int64).Add(1) > a.uses {
			return false
		}
		return ok && (req.URL.Path == "/v2/" || strings.Contains(scope.(string), "repository:"+repository(req)+":"))
	}
	return true
}

func (a *authentication) challenge(w http.ResponseWriter, req *http.Request) {
	if a.scheme == "basic" {
		w.Header().Set("WWW-Authenticate", `Basic realm="registrytest"`)
	} else {
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm=%q,service="registrytest",scope="repository:%s:pull"`,
			a.realm, repository(req)))
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusUnauthorized)
	fmt.Fprint(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`)
}

// serveToken answers a request for a bearer token: the token specification's GET and OAuth2's POST.
func (a *authentication) serveToken(w http.ResponseWriter, req *http.Request) {
	if err := req.ParseForm(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var ok bool
	switch {
	case req.Method == http.MethodGet:
		user, password, has := req.BasicAuth()
		ok = has && a.knows(user, password)
	case req.PostForm.Get("grant_type") == "password":
		ok = a.knows(req.PostForm.Get("username"), req.PostForm.Get("password"))
	case req.PostForm.Get("grant_type") == "refresh_token":
		ok = a.refresh != "" && same(req.PostForm.Get("refresh_token"), a.refresh)
	}
	if !ok {
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"wrong credentials"}]}`, http.StatusUnauthorized)
		return
	}
	token := rand.Text()
	a.tokens.Store(token, strings.Join(req.Form["scope"], " "))
	w.Header().Set("Content-Type", "application/json")
	answer := map[string]any{"token": token, "access_token": token}
	if a.uses == 0 {
		answer["expires_in"] = 300
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// repository is the name between /v2/ and the kind of object in a request's path.
func repository(req *http.Request) string {
	name := strings.TrimPrefix(req.URL.Path, "/v2/")
	for _, kind := range []string{"/manifests/", "/blobs/", "/tags/"} {
		if i := strings.LastIndex(name, kind); i >= 0 {
			return name[:i]
		}
	}
	return name
}

// selfSigned makes a certificate for an address, localhost and further names, good for a day.
func selfSigned(ip net.IP, names []string) (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(time.Now().UnixNano()),
		Subject:               pkix.Name{CommonName: "registrytest"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA:                  true,
		BasicConstraintsValid: true,
		IPAddresses:           []net.IP{ip},
		DNSNames:              []string{"localhost"},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
