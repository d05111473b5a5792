package bridge

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"berth/internal/codec"
	"berth/internal/disk"
	"berth/internal/model"
	"berth/internal/state"
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
	// Restoring: the interface is being made again. If there is one, it may have no addresses. Guarded by endpoints.mu.
	Restoring bool `json:"restoring,omitempty"`

	hostPorts []hostPort
	// leaving is closed when the endpoint has left the kernel; nil: nobody has detached it. Guarded by endpoints.mu.
	leaving chan struct{}
	// unlinked is closed when the kernel says that the interface of an endpoint on its way out is gone, or when somebody
	// waits for the endpoint; nil: it was closed. Guarded by endpoints.mu.
	unlinked chan struct{}
	// restored is when the watch, which alone uses it, last made the interface again.
	restored time.Time
	// prepared: it is no pod's yet. Guarded by endpoints.mu. It is not on disk: to the next berthd it is an endpoint of no
	// pod, or of the pod that got it.
	prepared bool
	// sysctls are those of Endpoint.Sysctls. Guarded by endpoints.mu. They are not on disk: the next berthd gives them to
	// Reconcile.
	sysctls map[string]string
	open    bool // the host ports belong in the table; guarded by portTable
}

// awaitNoMore ends the wait for the end of the endpoint's interface. endpoints.mu is locked.
func (r *record) awaitNoMore() {
	if r.unlinked != nil {
		close(r.unlinked)
		r.unlinked = nil
	}
}

// network is the bridge's range on disk, there as long as the bridge is.
type network struct {
	CIDRs []netip.Prefix `json:"cidrs"`
}

const (
	endpointsDir = "endpoints"
	networkFile  = "network.json"
	// What the node was told with SetCIDRs, which outlives the bridge; twice, since nothing else tells it again soon.
	nodeFile, nodeSpare = "node-cidrs.json", "node-cidrs.json.spare"
	unusedFile          = ".unused" // ends the name of a file whose record is gone
)

// writeFile puts a file in place whole, with the seal of a record. It does not sync: a record that a power failure
// takes away names kernel objects that the same failure took away. A file that is new is written where it is,
// without a rename: one that a crash cut off says that nothing had been made yet.
func writeFile(path string, v any) error {
	data, err := sealed(v)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return disk.WriteFile(path, data, 0o600)
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

func sealed(v any) ([]byte, error) {
	data, err := codec.Marshal(v)
	if err != nil {
		return nil, err
	}
	return state.Seal(data)
}

// readFile reads a file. found is false if there is no such file. If its content is damaged, spoilt says how; the
// caller then uses the state of the kernel. err is an error of the disk, or a *state.FormatError.
func readFile(path string, v any) (found bool, spoilt, err error) {
	data, err := disk.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil, nil
	}
	if err != nil {
		return false, nil, err
	}
	var newer *state.FormatError
	if err := state.Unseal(path, data); errors.As(err, &newer) {
		return false, nil, err
	} else if err != nil {
		return true, err, nil
	}
	return true, codec.Unmarshal(data, v), nil
}

// maxUnused is how many files of records that are gone are kept for the next endpoints. The files of more than these
// are removed.
const maxUnused = 64

// save writes the record of an endpoint, to a file of a record that is gone where there is one. On ext4 a new file
// looks for an inode among those that were freed in the minutes before, which is a twentieth of a pod's start where
// pods come and go.
func (es *endpoints) save(r *record) error {
	path := es.recordPath(r.ID)
	es.mu.Lock()
	last := len(es.unused) - 1
	if last < 0 {
		es.mu.Unlock()
		return writeFile(path, r)
	}
	unused := es.unused[last]
	es.unused = es.unused[:last]
	es.mu.Unlock()
	data, err := sealed(r)
	if err == nil {
		_, err = disk.Overwrite(unused, data)
	}
	if err == nil {
		err = os.Rename(unused, path)
	}
	if err != nil {
		return errors.Join(err, removeFile(unused))
	}
	return nil
}

// setRestoring writes to the record that the endpoint's interface is being made again, or that it was. The caller has
// locked the endpoint's ID.
func (es *endpoints) setRestoring(r *record, restoring bool) error {
	es.mu.Lock()
	r.Restoring = restoring
	written := *r
	es.mu.Unlock()
	return es.save(&written)
}

// forget takes the record of an endpoint away, all at once. The file is kept under a name that is no record's, so that
// the next Open removes it, whatever it holds.
func (es *endpoints) forget(r *record) error {
	path := es.recordPath(r.ID)
	es.mu.Lock()
	keep := len(es.unused) < maxUnused && !es.closed
	es.lastUnused++
	unused := filepath.Join(filepath.Dir(path), fmt.Sprint(es.lastUnused, unusedFile))
	es.mu.Unlock()
	if !keep {
		return removeFile(path)
	}
	if err := os.Rename(path, unused); err != nil {
		return removeFile(path) // which may be gone
	}
	es.mu.Lock()
	es.unused = append(es.unused, unused)
	es.mu.Unlock()
	return nil
}

// dropUnused removes the files that are kept for the next endpoints.
func (es *endpoints) dropUnused() error {
	es.mu.Lock()
	unused := es.unused
	es.unused = nil
	es.mu.Unlock()
	var errs []error
	for _, path := range unused {
		errs = append(errs, removeFile(path))
	}
	return errors.Join(errs...)
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (es *endpoints) recordPath(id string) string {
	return filepath.Join(es.cfg.StateDir, endpointsDir, id+".json")
}

// loadRecords reads all records, and removes files that are none. A record that is spoilt stays: Reconcile makes
// it anew, or removes it.
func loadRecords(dir string, log *slog.Logger) ([]*record, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex // guards all
	var all []*record
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, e := range entries {
		group.Go(func() error {
			r, err := loadRecord(dir, e.Name(), log)
			if r != nil {
				mu.Lock()
				defer mu.Unlock()
				all = append(all, r)
			}
			return err
		})
	}
	return all, group.Wait()
}

// loadRecord reads one record; nil: it is spoilt, which is logged, or the file is what a crash has left of a write.
func loadRecord(dir, name string, log *slog.Logger) (*record, error) {
	path := filepath.Join(dir, name)
	id, isRecord := strings.CutSuffix(name, ".json")
	if !isRecord {
		return nil, removeFile(path)
	}
	r := new(record)
	_, spoilt, err := readFile(path, r)
	if err != nil {
		return nil, err
	}
	if spoilt == nil {
		spoilt = r.check(id)
	}
	if spoilt != nil {
		log.Warn("a record of the pod network is spoilt", "pod_id", id, "error", spoilt)
		return nil, nil
	}
	r.open = true // as far as is known; Reconcile makes it so
	return r, nil
}

// check says what is wrong with a record that was read for an ID, and expands its ports.
func (r *record) check(id string) error {
	if r.ID != id || len(r.Addresses) == 0 || r.Link == "" {
		return fmt.Errorf("it is of %q, with the addresses %v and the interface %q", r.ID, r.Addresses, r.Link)
	}
	err := ValidatePorts(r.Ports)
	if err == nil {
		r.hostPorts, err = hostPorts(r.Ports, r.Addresses)
	}
	return err
}
