package resolvconf

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
)

// maxSize limits how much of a file is read, in bytes. Resolvers read three name servers of it.
const maxSize = 1 << 20

// Files are the places of the node's files.
type Files struct {
	Node     string // what the node's own programs read
	Upstream string // what systemd-resolved writes: the servers that it asks itself
}

// Host are the files of this node.
var Host = Files{Node: "/etc/resolv.conf", Upstream: "/run/systemd/resolve/resolv.conf"}

// OfNode returns the node's file, for pods in the node's network. It is empty if there is none.
func (f Files) OfNode() ([]byte, error) {
	data, err := read(f.Node)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// OfPod returns the file for pods with a network of their own: the node's, unless all its servers are on loopback
// addresses and systemd-resolved knows others.
func (f Files) OfPod() ([]byte, error) {
	node, err := f.OfNode()
	if err != nil || reachable(node) {
		return node, err
	}
	// Without this file, and with one that leads nowhere either, the node's is as good.
	if upstream, err := read(f.Upstream); err == nil && reachable(upstream) {
		return upstream, nil
	}
	return node, nil
}

// reachable tells whether a resolv.conf names a server that is not on a loopback address. A resolver asks 127.0.0.1 if
// there is no server in it.
func reachable(data []byte) bool {
	for line := range bytes.Lines(data) {
		words := bytes.Fields(line)
		if len(words) < 2 || string(words[0]) != "nameserver" {
			continue
		}
		if addr, err := netip.ParseAddr(string(words[1])); err != nil || !addr.Unmap().IsLoopback() {
			return true
		}
	}
	return false
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err == nil && len(data) > maxSize {
		err = fmt.Errorf("%s has more than %d bytes", path, maxSize)
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}
