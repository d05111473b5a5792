package cni

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// orphanOf is the directory that TestMain gets from TestAKilledBerthdLeavesNoPluginAtWork.
const orphanOf = "BERTH_TEST_ORPHAN_OF"

// TestMain is a berthd that adds a pod, for the test that kills it.
func TestMain(m *testing.M) {
	if dir := os.Getenv(orphanOf); dir != "" {
		n, err := Open(orphanConfig(dir))
		if err == nil {
			_, err = n.Add(context.Background(), n.Selected().Network, Attachment{
				ID: "orphan-" + filepath.Base(dir), Name: "p", Namespace: "n", NetNS: "/proc/self/ns/net"})
		}
		panic(err) // the plugin does not end
	}
	os.Exit(m.Run())
}

func orphanConfig(dir string) Config {
	return Config{ConfDir: dir, BinDirs: []string{dir}, CacheDir: filepath.Join(dir, "cache"),
		StateDir: filepath.Join(dir, "state")}
}

// The plugin of a berthd that was killed, and the program that the plugin waits for, end before the pod's DEL. Seen to
// fail without endOrphans: the program takes the address after the DEL.
func TestAKilledBerthdLeavesNoPluginAtWork(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it brings up lo in a network namespace")
	}
	dir, err := os.MkdirTemp("", "orphan")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	plugin(t, dir, "slow", `case $CNI_COMMAND in
ADD) `+dir+`/ipam; exit 1;;
DEL) touch `+dir+`/deleted; rm -f `+dir+`/held;;
esac`)
	// It takes the address once the DEL is over, as one does that waits for an API server.
	plugin(t, dir, "ipam", `exec 9>`+dir+`/works
flock 9
touch `+dir+`/began
while [ ! -e `+dir+`/goon ]; do sleep 0.01; done
touch `+dir+`/held`)
	conf := `{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "slow"}]}`
	if err := os.WriteFile(filepath.Join(dir, "10-n.conflist"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	berthd := exec.Command(os.Args[0])
	berthd.Env = append(os.Environ(), orphanOf+"="+dir)
	berthd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := berthd.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, filepath.Join(dir, "began"))
	if err := berthd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = berthd.Wait()

	n, err := Open(orphanConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := n.Reconcile(nil); err != nil {
		t.Fatal(err)
	}
	if err := n.Collect(ctx); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "goon"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// The program holds the lock as long as it lives.
	if out, err := exec.CommandContext(ctx, "flock", filepath.Join(dir, "works"), "true").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := os.Stat(filepath.Join(dir, "deleted")); err != nil {
		t.Errorf("no DEL: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "held")); err == nil {
		t.Error("the address is taken after the pod's DEL")
	}
}

// What a plugin has left running for a pod that was joined is no orphan.
func TestOnlyPodsThatWereNotJoinedHaveOrphans(t *testing.T) {
	dir := t.TempDir()
	plugin(t, dir, "slow", "exit 0")
	conf := `{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "slow"}]}`
	if err := os.WriteFile(filepath.Join(dir, "10-n.conflist"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := Open(orphanConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	for _, id := range []string{"joined", "unfinished"} {
		r, err := newRecord(Attachment{ID: id, Name: id, Namespace: "n"}, n.Selected().Network)
		if err != nil {
			t.Fatal(err)
		}
		n.records[id], n.earlier[id] = r, true
	}
	n.earlier["forgotten"] = true
	cache := n.cachePath("n", "joined")
	if err := os.MkdirAll(filepath.Dir(cache), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cache, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	pods, err := n.unfinished()
	if err != nil || len(pods) != 1 || !pods["unfinished"] {
		t.Errorf("%v, %v", pods, err)
	}
}

// A program of a container may have any environment, and start others like it for ever.
func TestProcessesOfPodsAreNoOrphans(t *testing.T) {
	id := strings.Repeat("0a", 32)
	for _, c := range []struct {
		cgroups, self string
		want          bool
	}{
		{"0::/system.slice/berthd.service", "0::/system.slice/berthd.service", true},
		{"0::/user.slice", "0::/system.slice/berthd.service", true},
		{"0::/kubepods/pod1/" + id, "0::/system.slice/berthd.service", false},
		{"0::/docker/" + id, "0::/docker/" + id, true}, // berthd is in a container itself
		{"0::/docker/" + id + "/kubepods/pod1/" + id, "0::/docker/" + id, false},
	} {
		if got := ofNode(c.cgroups, c.self); got != c.want {
			t.Errorf("%s beside %s: %v", c.cgroups, c.self, got)
		}
	}
}
