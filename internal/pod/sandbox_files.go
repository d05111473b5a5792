package pod

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"

	"berth/internal/model"
)

// The files of a pod that its containers see in /etc.
const (
	hostsFile    = "hosts"
	resolvFile   = "resolv.conf"
	hostnameFile = "hostname"
)

func (m *Manager) podFile(id, name string) string { return filepath.Join(m.pods.Path(id), name) }

func (m *Manager) writePodFiles(s *sandbox) error {
	cfg := s.rec.Config
	hostname := cfg.Hostname
	if hostname == "" || nodeNetwork(cfg) {
		var err error
		if hostname, err = os.Hostname(); err != nil {
			return err
		}
	}
	resolv, err := resolvConf(cfg.DNS)
	if err != nil {
		return err
	}
	hosts := []byte(hostsFor(hostname, s.rec.IPs))
	if nodeNetwork(cfg) {
		if node, err := os.ReadFile("/etc/hosts"); err == nil {
			hosts = node
		}
	}
	for name, data := range map[string][]byte{hostsFile: hosts, resolvFile: resolv, hostnameFile: []byte(hostname + "\n")} {
		path := m.podFile(s.id, name)
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
		if err := s.rec.Label.Apply(path, false); err != nil {
			return err
		}
	}
	return nil
}

func hostsFor(hostname string, ips []string) string {
	var b strings.Builder
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
	for _, ip := range ips {
		fmt.Fprintf(&b, "%s\t%s\n", ip, hostname)
	}
	return b.String()
}

// resolvConf is a resolv.conf(5) of a pod's DNS, or the node's own where the pod says nothing.
func resolvConf(dns *model.DNS) ([]byte, error) {
	if dns == nil || len(dns.Servers)+len(dns.Searches)+len(dns.Options) == 0 {
		node, err := os.ReadFile("/etc/resolv.conf")
		if errors.Is(err, os.ErrNotExist) {
			return nil, nil
		}
		return node, err
	}
	var b strings.Builder
	for _, list := range [][]string{dns.Servers, dns.Searches, dns.Options} {
		for _, v := range list {
			if strings.ContainsAny(v, "\n\r\x00") {
				return nil, fmt.Errorf("dns_config: %q holds a line break: %w", v, errdefs.ErrInvalidArgument)
			}
		}
	}
	if len(dns.Searches) > 0 {
		b.WriteString("search " + strings.Join(dns.Searches, " ") + "\n")
	}
	for _, server := range dns.Servers {
		b.WriteString("nameserver " + server + "\n")
	}
	if len(dns.Options) > 0 {
		b.WriteString("options " + strings.Join(dns.Options, " ") + "\n")
	}
	return []byte(b.String()), nil
}
