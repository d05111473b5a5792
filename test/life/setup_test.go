package life

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	keeper "berth/internal/keeper/client"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// setupOf is what a container's verbose status says of what has set it up.
func setupOf(t *testing.T, n *node.Node, id string) (s keeper.Setup) {
	t.Helper()
	r, err := n.Runtime.ContainerStatus(nodetest.Context(t), &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	var info struct{ Setup keeper.Setup }
	if err := json.Unmarshal([]byte(r.Info["info"]), &info); err != nil {
		t.Fatal(err)
	}
	return info.Setup
}

// initSetupOf likewise, of a pod's init.
func initSetupOf(t *testing.T, n *node.Node, id string) (s keeper.Setup) {
	t.Helper()
	r, err := n.Runtime.PodSandboxStatus(nodetest.Context(t),
		&cri.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	var info struct{ InitSetup keeper.Setup }
	if err := json.Unmarshal([]byte(r.Info["info"]), &info); err != nil {
		t.Fatal(err)
	}
	return info.InitSetup
}

// TestARuntimeHandlerSwitchesAwayFromTheStage, and back, under running pods: containers go on as they were when the key
// changes, over deaths of berthd and of the keeper, and each says what set it up and why. Seen to fail where berthd
// does not pass the key on, for containers and for inits, and where reconciling does not take what the keeper says.
func TestARuntimeHandlerSwitchesAwayFromTheStage(t *testing.T) {
	nodetest.BerthOnly(t, "the key is Berth's")
	n := nodetest.Start(t, node.Options{Setup: "stage"})
	file := filepath.Join(n.Dir, "config.toml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	become := func(setup string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(strings.Replace(string(text), `setup = "stage"`, `setup = "`+setup+`"`, 1)),
			0o600); err != nil {
			t.Fatal(err)
		}
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := n.Restart(nodetest.Context(t)); err != nil {
			t.Fatal(err)
		}
	}
	shared := podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_POD})
	before := nodetest.RunPod(t, n, shared)
	type member struct {
		c      *nodetest.Container
		engine keeper.Engine
	}
	var all []member
	run := func(p *nodetest.Pod, engine keeper.Engine) {
		t.Helper()
		all = append(all, member{p.Run(), engine})
	}
	check := func() {
		t.Helper()
		for _, m := range all {
			s := setupOf(t, n, m.c.ID)
			if s.Engine != m.engine || s.ExecEngine != m.engine || s.Reason == "" || s.ExecReason == "" {
				t.Errorf("%+v, and not by %s", s, m.engine)
			}
			if got := m.c.Sh("echo inside"); got != "inside" {
				t.Errorf("exec: %q", got)
			}
		}
	}
	run(before, keeper.EngineStage)
	become("libcontainer")
	run(before, keeper.EngineLibcontainer)
	after := nodetest.RunPod(t, n, shared)
	run(after, keeper.EngineLibcontainer)
	for id, want := range map[string]keeper.Engine{before.ID: keeper.EngineStage, after.ID: keeper.EngineLibcontainer} {
		if s := initSetupOf(t, n, id); s.Engine != want || s.Reason == "" {
			t.Errorf("init of a pod: %+v, and not by %s", s, want)
		}
	}
	check()
	if err := n.KillKeeper(); err != nil {
		t.Fatal(err)
	}
	check()
	become("stage")
	run(after, keeper.EngineStage)
	check()
	if s := setupOf(t, n, all[1].c.ID); !strings.Contains(s.Reason, `setup = "libcontainer"`) {
		t.Errorf("%+v does not name the key", s)
	}
	created := after.Create()
	if s := setupOf(t, n, created.ID); s != (keeper.Setup{}) {
		t.Errorf("a container that has not been started: %+v", s)
	}
	for handler := range n.Handlers {
		if handler == "runc" {
			c := nodetest.RunPodHandler(t, n, handler).Run()
			if s := setupOf(t, n, c.ID); s.Engine != keeper.EngineOCI || !strings.Contains(s.Reason, n.Handlers[handler]) {
				t.Errorf("%+v of %s", s, handler)
			}
		}
	}
}

// TestBerthdTakesWhatTheKeeperSaysOfASetup whose answer it did not live to hear.
func TestBerthdTakesWhatTheKeeperSaysOfASetup(t *testing.T) {
	nodetest.BerthOnly(t, "looks into the record")
	n := nodetest.Start(t, node.Options{Setup: "libcontainer"})
	c := nodetest.RunPod(t, n).Run()
	want := setupOf(t, n, c.ID)
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	// As it stands on disk when berthd dies in the start.
	dir := filepath.Join(n.Root, "containers", c.ID)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	changed := 0
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "container.json") {
			continue
		}
		path := filepath.Join(dir, e.Name())
		var record map[string]any
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if json.Unmarshal(b, &record) != nil {
			continue
		}
		for _, key := range []string{"_format", "_copy", "_sum"} { // as a berthd wrote it that put no seals on records
			delete(record, key)
		}
		delete(record, "setup")
		delete(record, "pid")
		record["phase"] = "starting"
		if b, err = json.Marshal(record); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		changed++
	}
	if changed == 0 {
		t.Fatalf("no record in %v", entries)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	if got := setupOf(t, n, c.ID); got != want || got.Engine != keeper.EngineLibcontainer {
		t.Errorf("%+v, and not %+v", got, want)
	}
}
