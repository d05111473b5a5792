package bridge

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"berth/internal/network/testhost"
)

// TestHostPortsComeAndGoOverOneConnection: where a socket of netfilter is closed after something was removed, nobody
// makes an interface for a grace period. It was seen to fail with a connection for each transaction.
func TestHostPortsComeAndGoOverOneConnection(t *testing.T) {
	b := open(t, Config{Name: "brone", StateDir: t.TempDir()})
	attach(t, b, "first", tcp(8080, 80))
	conn := b.ports.tables.conn
	if conn == nil {
		t.Fatal("the connection does not stay open")
	}
	attach(t, b, "second", tcp(8081, 80))
	testhost.Check(t, b.Detach(t.Context(), "first"))
	attach(t, b, "third", tcp(8080, 80))
	if b.ports.tables.conn != conn {
		t.Error("there is another connection")
	}
}

// TestARefusedTransactionSpoilsNoLaterOne: what answers it must not be taken for the answer to the next one.
func TestARefusedTransactionSpoilsNoLaterOne(t *testing.T) {
	var in tables
	t.Cleanup(func() { _ = in.Close() })
	own := &nftables.Table{Family: nftables.TableFamilyINet, Name: "berth-refused"}
	change := func(to string, do func(*nftables.Conn, *nftables.Table), want bool) {
		t.Helper()
		if err := in.transaction(func(c *nftables.Conn) error { do(c, own); return nil }); err != nil {
			t.Errorf("%s the table: %v", to, err)
		}
		found, err := inetTables()
		testhost.Check(t, err)
		if there := slices.ContainsFunc(found, func(t *nftables.Table) bool { return t.Name == own.Name }); there != want {
			t.Errorf("%s the table: it is there: %v", to, there)
		}
	}
	for range 3 {
		err := in.transaction(func(c *nftables.Conn) error {
			for range 5 {
				c.DelTable(own)
			}
			return nil
		})
		if !errors.Is(err, unix.ENOENT) {
			t.Fatalf("a table that is not there is removed: %v", err)
		}
		change("add", func(c *nftables.Conn, t *nftables.Table) { c.AddTable(t) }, true)
		change("remove", (*nftables.Conn).DelTable, false)
	}
}
