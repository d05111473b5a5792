package registry

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
)

// sending says how the credentials of a pull are sent to a host: berth_credentials in hosts.toml.
type sending string

const (
	sendNever sending = "never"
	sendTLS   sending = "tls"   // over TLS, and to loopback
	sendPlain sending = "plain" // over plain HTTP too, where everybody on the way can read them
)

// withheld is why a host does not get the credentials of a pull. It is empty where the host gets them.
//
// Credentials are for one host: the registry of the reference, or the server that the client names with them. Those for
// the registry go to the server that hosts.toml puts in its place, too; a mirror gets them where its table says so.
func (c *credentials) withheld(domain string, h docker.RegistryHost, rule hostRule) string {
	if c.password == "" && c.token == "" {
		return ""
	}
	forRegistry := c.server == "" || canonical(c.server) == canonical(domain)
	owner := c.server
	if forRegistry {
		owner = domain
	}
	is := sameHost(h, owner)
	send := rule.send
	if send == "" {
		send = sendNever
		if is || forRegistry && rule.server {
			send = sendTLS
		}
	}
	switch {
	case send == sendNever && is:
		return "berth_credentials in hosts.toml is never"
	case send == sendNever || !is && !forRegistry:
		return fmt.Sprintf("they are for %s", owner)
	case rule.plain && send != sendPlain && !docker.IsLocalhost(h.Host):
		return "the host is asked over plain HTTP"
	}
	return ""
}

// sameHost tells whether a host that is asked is the one that a registry's name, host[:port], stands for.
func sameHost(h docker.RegistryHost, name string) bool {
	hostname, port := splitHost(canonical(h.Host))
	wanted, wantedPort := splitHost(canonical(name))
	standard := map[string]string{"https": "443", "http": "80"}[h.Scheme]
	if port == "" {
		port = standard
	}
	if wantedPort == "" {
		wantedPort = standard
	}
	return strings.EqualFold(hostname, wanted) && port == wantedPort
}

func splitHost(s string) (host, port string) {
	if host, port, err := net.SplitHostPort(s); err == nil {
		return host, port
	}
	return strings.Trim(s, "[]"), ""
}

// canonical folds the names of Docker Hub into one.
func canonical(host string) string {
	switch host {
	case "index.docker.io", "registry-1.docker.io":
		return "docker.io"
	}
	return host
}

// checkRealm refuses a token service that a host should not have named: what asks for a token there sends credentials,
// and takes the answer to the host that named it. So a service is asked over TLS. One over plain HTTP
// may only be on the same machine as a registry over plain HTTP: else a hostile registry would have the node ask
// services that trust the node. A service at the node or on its link is asked only where hosts.toml names it.
func checkRealm(realm string, named *url.URL, rules *hostRules) error {
	u, err := url.Parse(realm)
	if err != nil || u.Host == "" || u.User != nil {
		return fmt.Errorf("the token service %.200q that %s names is no URL of a host", realm, named.Host)
	}
	switch {
	case u.Scheme != "https" && u.Scheme != "http":
		return fmt.Errorf("the token service %.200q that %s names is no URL of HTTP", realm, named.Host)
	case !rules.names(address(u)) && (forbiddenAddress(net.ParseIP(u.Hostname())) ||
		docker.IsLocalhost(u.Host) && !docker.IsLocalhost(named.Host)):
		return fmt.Errorf("the token service %s that %s names is the node itself, or of its own link: it is not asked",
			u.Host, named.Host)
	case u.Scheme == "http" && (named.Scheme != "http" ||
		!strings.EqualFold(u.Hostname(), named.Hostname()) && !docker.IsLocalhost(u.Host)):
		return fmt.Errorf("the token service %s that %s names would be asked over plain HTTP", u.Host, named.Host)
	}
	return nil
}

// metadata are the addresses beside those of the link at which large clouds serve a machine's own credentials and
// configuration: AWS's and Google's over IPv6, Alibaba's, and Azure's.
var metadata = []net.IP{net.ParseIP("fd00:ec2::254"), net.ParseIP("fd20:ce::254"), net.ParseIP("100.100.100.200"),
	net.ParseIP("168.63.129.16")}

// forbiddenAddress are those that only the node itself should speak to, whoever names them: addresses of its link,
// at which clouds hand out the node's credentials, and those that stand for no host.
func forbiddenAddress(ip net.IP) bool {
	return ip != nil && (ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified() ||
		slices.ContainsFunc(metadata, ip.Equal))
}
