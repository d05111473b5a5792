package node_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// In a network namespace of its own: the machine's tables are everybody's.
func TestTheHostIsRestored(t *testing.T) {
	nodetest.Root(t)
	mounts, err := node.CgroupMounts()
	if err != nil || len(mounts) == 0 {
		t.Fatal(mounts, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with it
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		nft := func(script string) string {
			cmd := exec.Command("nft", "-f", "-")
			cmd.Stdin = strings.NewReader(script)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v: %s", script, err, out)
			}
			list, _ := exec.Command("nft", "list", "ruleset").CombinedOutput()
			return string(list)
		}
		before := nft(`add table ip mine
add chain ip mine CNI-old
add rule ip mine CNI-old accept
add table ip kept
add chain ip kept base { type nat hook postrouting priority 100; }
add rule ip kept base accept
`)
		host, err := node.ReadHost()
		if err != nil {
			t.Error(err)
			return
		}
		after := nft(`add chain ip kept CNI-a
add rule ip kept CNI-a masquerade
add chain ip kept CNI-b
add rule ip kept CNI-b jump CNI-a
add rule ip kept base jump CNI-b
add table ip nat
add chain ip nat POSTROUTING { type nat hook postrouting priority 100; }
add chain ip nat CNI-c
add rule ip nat CNI-c masquerade
add rule ip nat POSTROUTING ip saddr 10.1.2.3 jump CNI-c
add table ip6 nat
add chain ip6 nat POSTROUTING { type nat hook postrouting priority 100; }
add table ip mangle
`)
		if !strings.Contains(after, "CNI-b") || !strings.Contains(after, "CNI-c") {
			t.Errorf("no chains to remove: %s", after)
		}
		own := filepath.Join(mounts[0], "k8s.io")
		_, err = os.Stat(own)
		there := err == nil
		if err := os.MkdirAll(filepath.Join(own, "berth-test"), 0o755); err != nil {
			t.Error(err)
		}
		if err := host.Restore(); err != nil {
			t.Error(err)
		}
		if now := nft(""); now != before {
			t.Errorf("the tables were\n%s\nand are\n%s", before, now)
		}
		if _, err := os.Stat(own); err == nil != there {
			t.Errorf("%s is there: %t, and was: %t", own, err == nil, there)
		}
		if there {
			_ = unix.Rmdir(filepath.Join(own, "berth-test"))
		}
	}()
	<-done
}
