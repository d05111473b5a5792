package bridge

import (
	"fmt"
	"sync"

	"github.com/google/nftables"
)

// tables is the connection over which a bridge changes its nftables table. It stays open between transactions: when a
// socket of netfilter is closed, the kernel first lets go of all that transactions have removed. That takes a grace
// period, 7 ms on an idle machine, in which nobody on the machine can make a network interface. The zero value is ready
// for use.
type tables struct {
	mu   sync.Mutex
	conn *nftables.Conn // nil: not open
}

// transaction sends what fill writes as one transaction. When it returns, the kernel has carried out all of it, or
// refused all of it with the error.
func (t *tables) transaction(fill func(*nftables.Conn) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conn == nil {
		conn, err := nftables.New(nftables.AsLasting())
		if err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
		t.conn = conn
	}
	err := fill(t.conn)
	if err == nil {
		err = t.conn.Flush()
	}
	if err != nil {
		_ = t.close() // not every answer has been read, where the kernel was short of memory
		return fmt.Errorf("nftables: %w", err)
	}
	return nil
}

// Close closes the connection. A later transaction opens it again.
func (t *tables) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.close()
}

func (t *tables) close() error {
	if t.conn == nil {
		return nil
	}
	err := t.conn.CloseLasting()
	t.conn = nil
	return err
}
