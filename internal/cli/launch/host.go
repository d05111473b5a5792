package launch

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"

	"berth/internal/manifest"
	"berth/internal/resolvconf"
)

// ReadHost learns what pods may be told about this machine. Profiles of seccomp are where a kubelet looks for them.
func ReadHost() (*manifest.Host, error) {
	name, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	name, _, _ = strings.Cut(name, ".")
	memory, err := totalMemory()
	if err != nil {
		return nil, err
	}
	ofNode, err := resolvconf.Host.OfNode()
	if err != nil {
		return nil, err
	}
	ofPod, err := resolvconf.Host.OfPod()
	if err != nil {
		return nil, err
	}
	return &manifest.Host{
		Name:           name,
		IPs:            hostIPs(),
		MilliCPU:       int64(runtime.NumCPU()) * 1000,
		Memory:         memory,
		ResolvConf:     ofPod,
		NodeResolvConf: ofNode,
		SeccompDir:     "/var/lib/kubelet/seccomp",
	}, nil
}

// host is what a pod is told that is made or adopted now.
func (l *Launcher) host() (*manifest.Host, error) {
	if l.Host != nil {
		return l.Host, nil
	}
	return ReadHost()
}

// hostIPs are the machine's own addresses, of each family the one that it would reach others from. Connecting
// a datagram socket asks the kernel for it and sends nothing; the addresses are of documentation (RFC 5737 and 3849).
func hostIPs() []string {
	var ips []string
	for _, target := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		conn, err := net.Dial("udp", target)
		if err != nil {
			continue
		}
		if addr, ok := conn.LocalAddr().(*net.UDPAddr); ok && !addr.IP.IsLoopback() {
			ips = append(ips, addr.IP.String())
		}
		conn.Close()
	}
	if len(ips) == 0 {
		ips = []string{"127.0.0.1"}
	}
	return ips
}

// totalMemory is MemTotal in bytes.
func totalMemory() (int64, error) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	var kib int64
	if _, err := fmt.Fscanf(bytes.NewReader(data), "MemTotal: %d kB", &kib); err != nil {
		return 0, fmt.Errorf("/proc/meminfo: %w", err)
	}
	return kib << 10, nil
}
