package registrytest

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
)

// Proxy is a forward proxy: CONNECT for TLS, requests with whole URLs for plain HTTP. It alone knows where the names
// lead that it is asked for.
type Proxy struct {
	server *httptest.Server
	lookup func(address string) (string, bool)

	mu    sync.Mutex
	auth  string
	asked []string
}

// NewProxy starts a proxy. lookup is where a host:port leads.
func NewProxy(lookup func(address string) (string, bool)) *Proxy {
	p := &Proxy{lookup: lookup}
	p.server = httptest.NewServer(p)
	return p
}

// Close ends the proxy.
func (p *Proxy) Close() { p.server.Close() }

// Addr is where it listens.
func (p *Proxy) Addr() string { return p.server.Listener.Addr().String() }

// Require sets the Proxy-Authorization that the proxy wants.
func (p *Proxy) Require(auth string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.auth = auth
}

// Asked are methods and hosts of the requests, sorted, each once.
func (p *Proxy) Asked() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(p.asked)))
}

func (p *Proxy) ServeHTTP(rw http.ResponseWriter, req *http.Request) {
	p.mu.Lock()
	p.asked = append(p.asked, req.Method+" "+req.URL.Host)
	auth := p.auth
	p.mu.Unlock()
	if auth != "" && req.Header.Get("Proxy-Authorization") != auth {
		rw.WriteHeader(http.StatusProxyAuthRequired)
		return
	}
	address := req.URL.Host
	if _, _, err := net.SplitHostPort(address); err != nil {
		address += ":80"
	}
	to, ok := p.lookup(address)
	switch {
	case !ok:
		rw.WriteHeader(http.StatusBadGateway)
	case req.Method == http.MethodConnect:
		tunnel(rw, to)
	default:
		forward(rw, req, to)
	}
}

func tunnel(rw http.ResponseWriter, to string) {
	up, err := net.Dial("tcp", to)
	if err != nil {
		rw.WriteHeader(http.StatusBadGateway)
		return
	}
	down, _, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		up.Close()
		return
	}
	_, _ = io.WriteString(down, "HTTP/1.1 200 OK\r\n\r\n")
	go func() { _, _ = io.Copy(up, down); up.Close() }()
	_, _ = io.Copy(down, up)
	down.Close()
}

func forward(rw http.ResponseWriter, req *http.Request, to string) {
	out := req.Clone(req.Context())
	out.RequestURI, out.URL.Host = "", to
	out.Header.Del("Proxy-Connection")
	out.Header.Del("Proxy-Authorization")
	direct := &http.Transport{DisableKeepAlives: true}
	resp, err := direct.RoundTrip(out)
	if err != nil {
		rw.WriteHeader(http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	for k, v := range resp.Header {
		rw.Header()[k] = v
	}
	rw.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(rw, resp.Body)
}
