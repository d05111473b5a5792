package client_test

import "testing"

// TestAKeeperTellsItsCounts: of the escrow, of execs that run, and of what logs got.
func TestAKeeperTellsItsCounts(t *testing.T) {
	n := start(t)
	before, err := n.client.Info(n.ctx())
	if err != nil {
		t.Fatal(err)
	}
	if before.Counts == nil || before.Counts.Holders != 1 || before.Counts.LogBytes != 0 {
		t.Fatalf("before any container: %+v", before.Counts)
	}
	n.run(n.request("a", "sh", "-c", `head -c 40000 /dev/zero | tr '\0' x; echo; exec sleep 1000`))
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.exec("a", 0, "sh", "-c", "while [ ! -e /tmp/end ]; do sleep 0.05; done")
	}()
	n.until("the keeper has counted the log and the exec", func() bool {
		info, err := n.client.Info(n.ctx())
		if err != nil {
			t.Fatal(err)
		}
		c := info.Counts
		return c.LogBytes > 40000 && c.LogLinesCut == 2 && c.LogDropped == 0 && c.Execs == 1
	})
	n.exec("a", 0, "sh", "-c", "mkdir -p /tmp && touch /tmp/end")
	<-done
	n.delete("a")
}
