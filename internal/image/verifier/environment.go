package verifier

import (
	"os"
	"strings"
)

// inherited are the variables of berthd's own environment that programs have too: what they need to reach a registry.
// Others may be secrets, or belong to berthd alone, as NOTIFY_SOCKET does.
var inherited = []string{
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR",
}

// Environment is what programs need to reach registries as berthd does: its own proxies and certificate authorities,
// with those of the configuration in their place.
func Environment(httpProxy, httpsProxy, noProxy string) []string {
	configured := map[string]string{"http_proxy": httpProxy, "https_proxy": httpsProxy, "no_proxy": noProxy}
	var env []string
	for _, name := range inherited {
		value := configured[strings.ToLower(name)]
		if value == "" {
			value = os.Getenv(name)
		}
		if value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env
}
