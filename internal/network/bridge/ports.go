package bridge

import (
	"fmt"
	"sync"
)

// portTable is the nftables table, in which the endpoints' host ports are. Its lock makes transactions with the table
// one after another, so that each sees the records that it is made from. It guards record.open, and is taken before
// that of endpoints.
type portTable struct {
	sync.Mutex
	name string // of the bridge
	pods *endpoints
}

// open puts an endpoint's host ports into the table. Where the table is not what the records say, it is replaced.
func (t *portTable) open(r *record) error {
	t.Lock()
	defer t.Unlock()
	r.open = true
	rules, all := t.wanted()
	if rules.add(r.hostPorts) == nil {
		return nil
	}
	if err := rules.replace(all); err != nil {
		r.open = false
		return fmt.Errorf("host ports of pod %s: %w", r.Pod, err)
	}
	return nil
}

func (t *portTable) close(r *record) error {
	t.Lock()
	defer t.Unlock()
	r.open = false
	rules, others := t.wanted()
	if rules.remove(r.hostPorts) == nil {
		return nil
	}
	there, err := rules.there()
	if err == nil && there {
		err = rules.replace(others)
	}
	if err != nil {
		return fmt.Errorf("remove the host ports of pod %s: %w", r.Pod, err)
	}
	return nil
}

// wanted is the table as it must be. The caller holds the lock.
func (t *portTable) wanted() (ruleset, []hostPort) {
	t.pods.mu.Lock()
	defer t.pods.mu.Unlock()
	return t.pods.rules(), t.pods.openedPorts()
}

func (t *portTable) replace() error {
	t.Lock()
	defer t.Unlock()
	rules, ports := t.wanted()
	return rules.replace(ports)
}

// drop removes the table.
func (t *portTable) drop() error {
	t.Lock()
	defer t.Unlock()
	return ruleset{bridge: t.name}.drop()
}
