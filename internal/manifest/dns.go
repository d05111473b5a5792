package manifest

import (
	"bufio"
	"bytes"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What resolvers read of a resolv.conf, and what Kubernetes allows.
const (
	maxNameservers = 3
	maxSearches    = 32
)

// dns is the pod's DNS configuration; nil means the node's own. There is no cluster DNS here, and so ClusterFirst
// is what it is on a kubelet without clusterDNS: the node's configuration.
func (p *Pod) dns(resolvConf []byte) (*cri.DNSConfig, error) {
	extra := p.Spec.DNSConfig
	if p.Spec.DNSPolicy != corev1.DNSNone && extra == nil {
		return nil, nil
	}
	config := &cri.DNSConfig{}
	if p.Spec.DNSPolicy != corev1.DNSNone {
		config = parseResolvConf(resolvConf)
	}
	if extra != nil {
		config.Servers = appendNew(config.Servers, extra.Nameservers)
		config.Searches = appendNew(config.Searches, extra.Searches)
		config.Options = mergeOptions(config.Options, extra.Options)
	}
	if n := len(config.Servers); n > maxNameservers {
		return nil, fmt.Errorf(
			"spec.dnsConfig.nameservers: with the node's own they are %d, more than %d (dnsPolicy: None leaves the node's out)",
			n, maxNameservers)
	}
	if n := len(config.Searches); n > maxSearches {
		return nil, fmt.Errorf("spec.dnsConfig.searches: with the node's own they are %d, more than %d", n, maxSearches)
	}
	return config, nil
}

// parseResolvConf reads resolv.conf(5).
func parseResolvConf(data []byte) *cri.DNSConfig {
	config := &cri.DNSConfig{}
	scanner := bufio.NewScanner(bytes.NewReader(data))
	for scanner.Scan() {
		fields := strings.Fields(scanner.Text())
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			config.Servers = appendNew(config.Servers, fields[1:2])
		case "search", "domain": // the last one holds
			config.Searches = slices.Clone(fields[1:])
		case "options":
			config.Options = append(config.Options, fields[1:]...)
		}
	}
	return config
}

func appendNew(list, more []string) []string {
	for _, item := range more {
		if !slices.Contains(list, item) {
			list = append(list, item)
		}
	}
	return list
}

// mergeOptions puts the pod's options in place of the node's of the same name.
func mergeOptions(options []string, extra []corev1.PodDNSConfigOption) []string {
	for _, option := range extra {
		options = slices.DeleteFunc(options, func(o string) bool {
			name, _, _ := strings.Cut(o, ":")
			return name == option.Name
		})
		if option.Value != nil && *option.Value != "" {
			options = append(options, option.Name+":"+*option.Value)
		} else {
			options = append(options, option.Name)
		}
	}
	return options
}

// HostsFile is the pod's /etc/hosts where it asks for hostAliases; nil where the runtime's own will do.
func (p *Pod) HostsFile(podIPs []string, hostFile []byte) []byte {
	if len(p.Spec.HostAliases) == 0 {
		return nil
	}
	var b bytes.Buffer
	if p.Spec.HostNetwork {
		b.Write(hostFile)
		if n := len(hostFile); n > 0 && hostFile[n-1] != '\n' {
			b.WriteByte('\n')
		}
	} else {
		b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
		b.WriteString("fe00::0\tip6-localnet\nff00::0\tip6-mcastprefix\nff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n")
		for _, ip := range podIPs {
			fmt.Fprintf(&b, "%s\t%s\n", ip, p.hostname())
		}
	}
	for _, alias := range p.Spec.HostAliases {
		fmt.Fprintf(&b, "%s\t%s\n", alias.IP, strings.Join(alias.Hostnames, "\t"))
	}
	return b.Bytes()
}
