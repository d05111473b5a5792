package life

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// A pod's annotation becomes a property of its unit, or names a file that the runtime writes as root, where a handler
// passes on whatever it is given. Seen to fail without the lists of package annotation.
func TestAnnotationsDoNotCommandARuntime(t *testing.T) {
	nodetest.BerthOnly(t, "containerd's configuration is another")
	tables := "[runtimes.wide-builtin]\ntype = \"builtin\"\nannotations = [\"*\"]\n"
	handlers := []string{"builtin"}
	for _, name := range []string{"runc", "crun"} {
		if path, err := exec.LookPath(name); err == nil {
			tables += fmt.Sprintf("[runtimes.wide-%s]\ntype = \"oci\"\npath = %q\nannotations = [\"*\", \"run.oci.*\"]\n",
				name, path)
			handlers = append(handlers, name)
		}
	}
	n := nodetest.Start(t, node.Options{Tables: tables})
	written := filepath.Join(t.TempDir(), "written")
	for _, handler := range handlers {
		t.Run(handler, func(t *testing.T) {
			if handler != "builtin" {
				nodetest.Handler(t, n, handler)
			}
			annotate := func(to map[string]string) map[string]string {
				if to == nil {
					to = map[string]string{}
				}
				to["org.systemd.property.TimeoutStopUSec"] = "uint64 1234567891"
				to["org.systemd.property.ExecStopPost"] = "[('/bin/touch', ['touch', '" + written + "'], false)]"
				to["run.oci.hooks.stdout"] = written
				to["run.oci.handler"] = "krun"
				to["org.criu.config"] = written
				to["vendor.com/note"] = "passed-on"
				return to
			}
			p := nodetest.RunPodHandler(t, n, "wide-"+handler, func(c *cri.PodSandboxConfig) {
				c.Annotations = annotate(c.Annotations)
			})
			c := p.Run(func(c *cri.ContainerConfig) { c.Annotations = annotate(c.Annotations) })
			if got := c.Sh("echo runs"); got != "runs" {
				t.Errorf("got %q", got)
			}
			told := 0
			err := filepath.WalkDir(n.State, func(path string, entry fs.DirEntry, err error) error {
				if err != nil || !entry.Type().IsRegular() || !strings.Contains(path, c.ID) {
					return nil // what is removed meanwhile, and mounts of the container
				}
				if name := entry.Name(); name != "config.json" && name != "state.json" && name != "status" {
					return nil
				}
				text, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				if strings.Contains(string(text), "passed-on") {
					told++
				}
				for _, key := range []string{"ExecStopPost", "1234567891", "run.oci.", written} {
					if strings.Contains(string(text), key) {
						t.Errorf("%s has %s", path, key)
					}
				}
				return nil
			})
			if err != nil || told == 0 {
				t.Errorf("the annotation that harms nobody is in no file of the runtime: %v", err)
			}
			c.Stop(0)
			if _, err := os.Stat(written); err == nil {
				t.Errorf("the runtime has written %s", written)
			}
		})
	}
	if log, err := os.ReadFile(n.DaemonLog); !strings.Contains(string(log),
		"org.systemd.property.ExecStopPost is not passed on") {
		t.Errorf("the log does not say why: %v, %s", err, log)
	}
}
