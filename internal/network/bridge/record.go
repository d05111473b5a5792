package bridge

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"berth/internal/model"
)

// record is an endpoint on disk. It is written before anything of the endpoint is in the kernel.
type record struct {
	ID        string              `json:"id"`
	Pod       string              `json:"pod"`
	NetNS     string              `json:"netns"`
	Link      string              `json:"link"` // the veth's end on the bridge
	Addresses []netip.Addr        `json:"addresses"`
	Ports     []model.PortMapping `json:"ports,omitempty"`
	Created   time.Time           `json:"created"`

	hostPorts []hostPort
	// leaving is closed when the endpoint has left the kernel; nil: nobody has detached it. Guarded by Bridge.mu.
	leaving chan struct{}
	// restored is when the watch, which alone uses it, last made the interface again.
	restored time.Time
	open     bool // the host ports belong in the table; guarded by Bridge.tables
}

// network is the bridge's range on disk, there as long as the bridge is.
type network struct {
	CIDRs []netip.Prefix `json:"cidrs"`
}

const (
	endpointsDir = "endpoints"
	networkFile  = "network.json"
	nodeFile     = "node-cidrs.json" // what the node was told with SetCIDRs, which outlives the bridge
)

// writeFile puts a file in place whole. It does not sync: a record that a power failure takes away names kernel objects
// that the same failure took away. A file that is new is written where it is, without a rename: one
// that a crash cut off says that nothing had been made yet, and is passed over.
func writeFile(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		tmp := path + ".tmp"
		if err := os.WriteFile(tmp, data, 0o600); err != nil {
			return err
		}
		return os.Rename(tmp, path)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// readFile tells whether there is a file that could be read. One that does not parse counts as absent: whoever reads it
// goes on from what the kernel says.
func readFile(path string, v any) (bool, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return json.Unmarshal(data, v) == nil, nil
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (b *Bridge) recordPath(id string) string {
	return filepath.Join(b.cfg.StateDir, endpointsDir, id+".json")
}

// loadRecords reads all records, and removes files that are none.
func loadRecords(dir string, log *slog.Logger) ([]*record, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []*record
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		r := new(record)
		ok := false
		if id, isRecord := strings.CutSuffix(e.Name(), ".json"); isRecord {
			if ok, err = readFile(path, r); err != nil {
				return nil, err
			}
			ok = ok && r.ID == id && len(r.Addresses) > 0 && r.Link != "" && ValidatePorts(r.Ports) == nil
		}
		if ok {
			r.hostPorts, err = hostPorts(r.Ports, r.Addresses)
			ok = err == nil
		}
		if !ok {
			log.Warn("removing a broken record of the pod network", "file", path)
			if err := removeFile(path); err != nil {
				return nil, err
			}
			continue
		}
		r.open = true // as far as is known; Reconcile makes it so
		all = append(all, r)
	}
	return all, nil
}
