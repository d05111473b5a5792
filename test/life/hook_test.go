package life

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// TestHooksOfTheNodeRunForTheContainersThatTheyName, at their stages, with the state of the container at their input.
// A file that is wrong keeps containers from being created, and says so; those that run live on.
func TestHooksOfTheNodeRunForTheContainersThatTheyName(t *testing.T) {
	nodetest.BerthOnly(t, "its errors are its own")
	dir := t.TempDir()
	ran := filepath.Join(t.TempDir(), "ran")
	n := nodetest.Start(t, node.Options{Config: fmt.Sprintf("hooks_dirs = [%q, %q]\n", filepath.Join(dir, "none"), dir)})
	nodetest.Pull(t, n, node.Busybox)
	hook := func(name, when string, stages ...string) {
		t.Helper()
		text := fmt.Sprintf(`{"version": "1.0.0", "hook": {"path": "/bin/sh", "args": ["sh", "-c",
			"grep -q '\"id\"' && echo %s $LD_PRELOAD >>%s"]}, "when": {%s}, "stages": ["%s"]}`, name, ran, when,
			strings.Join(stages, `","`))
		if err := os.WriteFile(filepath.Join(dir, name+".json"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	hook("b-pod", `"annotations": {"^example\\.com/traced$": "yes"}`, "prestart", "poststop")
	hook("a-command", `"commands": ["sh$"]`, "createRuntime")
	hook("c-mounts", `"hasBindMounts": true`, "createContainer")
	wantRan := func(want string) {
		t.Helper()
		nodetest.Eventually(t, 30e9, "hooks have run", func() error {
			got, err := os.ReadFile(ran)
			if text := strings.Join(strings.Fields(string(got)), " "); text != want {
				return fmt.Errorf("%q, want %q, %w", text, want, err)
			}
			return nil
		})
	}
	for _, handler := range []string{"", "runc", "crun"} {
		t.Run("handler "+handler, func(t *testing.T) {
			nodetest.Handler(t, n, handler)
			_ = os.Remove(ran)
			p := nodetest.RunPodHandler(t, n, handler, func(c *cri.PodSandboxConfig) {
				c.Annotations = map[string]string{"example.com/traced": "yes"}
			})
			c := p.Run(func(c *cri.ContainerConfig) {
				c.Command, c.Args = []string{"sh", "-c", "sleep 1000"}, nil
				c.Envs = append(c.Envs, &cri.KeyValue{Key: "LD_PRELOAD", Value: []byte("/of-the-image.so")})
				c.Mounts = append(c.Mounts, &cri.Mount{HostPath: dir, ContainerPath: "/hooks", Readonly: true})
			})
			wantRan("a-command b-pod c-mounts")
			c.Stop(0)
			c.Remove()
			wantRan("a-command b-pod c-mounts b-pod")
			p.Run(func(c *cri.ContainerConfig) { c.Command, c.Args = []string{"sleep", "1000"}, nil })
			wantRan("a-command b-pod c-mounts b-pod b-pod")
		})
	}
	p := nodetest.RunPod(t, n)
	lives := p.Run()
	wrong := filepath.Join(dir, "d-wrong.json")
	if err := os.WriteFile(wrong, []byte(`{"version": "1.0.0", "hook": {"path": "/no/such"}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := p.TryCreate(); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), wrong) ||
		!strings.Contains(err.Error(), "hooks_dirs") {
		t.Errorf("a hook whose program is not there: %v", err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatalf("a wrong hook keeps berthd from starting: %v", err)
	}
	if s := lives.Status(); s.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("a container that runs: %v", s)
	}
	if err := os.Remove(wrong); err != nil {
		t.Fatal(err)
	}
	p.Run()
	// Hooks of a configuration that is loaded again are those of the next containers.
	config := filepath.Join(n.Dir, "config.toml")
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	text = []byte(strings.Replace(string(text), "hooks_dirs = ", "hooks_dirs = []\n#", 1))
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	signalled(t, n, syscall.SIGHUP, reloaded)
	_ = os.Remove(ran)
	p.Run(func(c *cri.ContainerConfig) { c.Command, c.Args = []string{"sh", "-c", "sleep 1000"}, nil })
	if got, err := os.ReadFile(ran); err == nil {
		t.Errorf("after hooks_dirs was emptied: %s", got)
	}
}
