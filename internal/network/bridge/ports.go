package bridge

import (
	"fmt"
	"sync"
)

// portTable is the nftables table with the endpoints' host ports. Its lock serializes transactions with the table, so
// that the records from which a transaction is made do not change during the transaction. It guards record.open, and is
// taken before that of endpoints.
type portTable struct {
	sync.Mutex
	name   string // of the bridge
	pods   *endpoints
	tables tables
}

// open adds an endpoint's host ports to the table. If the table differs from the records, it is replaced.
func (t *portTable) open(r *record) error {
	t.Lock()
	defer t.Unlock()
	r.open = true
	rules, all := t.wanted()
	if rules.add(&t.tables, r.hostPorts) == nil {
		return nil
	}
	if err := rules.replace(&t.tables, all); err != nil {
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
	if rules.remove(&t.tables, r.hostPorts) == nil {
		return nil
	}
	there, err := rules.there()
	if err == nil && there {
		err = rules.replace(&t.tables, others)
	}
	if err != nil {
		return fmt.Errorf("remove the host ports of pod %s: %w", r.Pod, err)
	}
	return nil
}

// wanted returns the table and the host ports according to the records. The caller holds the lock.
func (t *portTable) wanted() (ruleset, []hostPort) {
	t.pods.mu.Lock()
	defer t.pods.mu.Unlock()
	return t.pods.rules(), t.pods.openedPorts()
}

func (t *portTable) replace() error {
	t.Lock()
	defer t.Unlock()
	rules, ports := t.wanted()
	return rules.replace(&t.tables, ports)
}

// drop removes the table.
func (t *portTable) drop() error {
	t.Lock()
	defer t.Unlock()
	return ruleset{bridge: t.name}.drop(&t.tables)
}
