package devices

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// cdiNode is a node with a directory of CDI specifications, and a function that writes one.
func cdiNode(t *testing.T) (n *node.Node, dir string, write func(text string)) {
	t.Helper()
	nodetest.BerthOnly(t, "its errors are its own")
	dir = t.TempDir()
	n = nodetest.Start(t, node.Options{Config: fmt.Sprintf("cdi_spec_dirs = [%q]\n", dir)})
	return n, dir, func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "vendor.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func wants(names ...string) nodetest.ContainerEdit {
	return func(c *cri.ContainerConfig) {
		for _, name := range names {
			c.CDIDevices = append(c.CDIDevices, &cri.CDIDevice{Name: name})
		}
	}
}

func TestHooksOfACDIDeviceRun(t *testing.T) {
	n, dir, write := cdiNode(t)
	nodetest.Pull(t, n, node.Busybox)
	for _, handler := range []string{"", "runc", "crun"} {
		t.Run("handler "+handler, func(t *testing.T) {
			nodetest.Handler(t, n, handler)
			log := filepath.Join(dir, "hooks"+handler)
			hook := func(name, file string) string {
				return fmt.Sprintf("    - {hookName: %s, path: /bin/sh, args: [sh, -c, 'cat >/dev/null; "+
					"echo %s $WHO >>%s'], env: [WHO=vendor]}\n", name, name, file)
			}
			write("cdiVersion: 0.6.0\nkind: v.com/c\ndevices:\n- name: d\n  containerEdits:\n    hooks:\n" +
				hook("createRuntime", log) +
				hook("createContainer", log) + hook("startContainer", "/hooked") + hook("poststart", log) + hook("poststop", log))
			p := nodetest.RunPodHandler(t, n, handler)
			c := p.Run(wants("v.com/c=d"))
			// It runs once the runtime has let the container's init process go, which nobody waits for.
			if got := c.Sh("until grep -q . /hooked 2>/dev/null; do sleep 0.05; done; cat /hooked"); got !=
				"startContainer vendor" {
				t.Errorf("in the container: %q", got)
			}
			wantLog := func(want string) {
				t.Helper()
				nodetest.Eventually(t, 30e9, "hooks have run", func() error {
					if got, err := os.ReadFile(log); string(got) != want {
						return fmt.Errorf("%q, %v", got, err)
					}
					return nil
				})
			}
			wantLog("createRuntime vendor\ncreateContainer vendor\npoststart vendor\n")
			c.Remove()
			wantLog("createRuntime vendor\ncreateContainer vendor\npoststart vendor\npoststop vendor\n")
		})
	}
}

func TestAHookThatFailsKeepsTheContainerFromStarting(t *testing.T) {
	n, _, write := cdiNode(t)
	write("cdiVersion: 0.6.0\nkind: v.com/c\ndevices:\n- name: d\n  containerEdits:\n    hooks:\n" +
		"    - {hookName: createRuntime, path: /bin/sh, args: [sh, -c, 'echo no licence >&2; exit 3']}\n")
	c := nodetest.RunPod(t, n).Create(wants("v.com/c=d"))
	if err := c.TryStart(); err == nil || !strings.Contains(err.Error(), "no licence") {
		t.Errorf("error %v", err)
	}
}

func TestCDIDevicesComeByFieldAndAnnotationAndAreReadAgain(t *testing.T) {
	n, dir, write := cdiNode(t)
	p := nodetest.RunPod(t, n)
	write("cdiVersion: 0.6.0\nkind: v.com/c\ndevices:\n- {name: a, containerEdits: {env: [A=1]}}\n")
	_, err := p.TryCreate(wants("v.com/c=b"))
	nodetest.WantCode(t, err, codes.FailedPrecondition)
	if want := "v.com/c=b: not on this node: " + dir + "/vendor.yaml:2 has a"; !strings.Contains(err.Error(), want) {
		t.Errorf("no %q in %v", want, err)
	}
	write("cdiVersion: 0.6.0\nkind: v.com/c\ndevices:\n- {name: a, containerEdits: {env: [A=2]}}\n" +
		"- {name: b, containerEdits: {deviceNodes: [{path: /dev/mine, hostPath: /dev/full}]}}\n")
	c := p.Run(wants("v.com/c=b"), func(c *cri.ContainerConfig) {
		c.Annotations = map[string]string{"cdi.k8s.io/vendor": "v.com/c=a"}
	})
	if got := c.Sh("echo $A; test -c /dev/mine; echo x 2>&1 >/dev/mine | tail -1"); !strings.HasPrefix(got, "2") {
		t.Errorf("got %q", got)
	}
	write("cdiVersion: 0.6.0\nkind: v.com/c\ndevices:\n- name: a\n  containerEdits:\n    deviceNodes:\n" +
		"    - path: /dev/x\n      permissions: all\n")
	_, err = p.TryCreate(wants("v.com/c=a"))
	nodetest.WantCode(t, err, codes.FailedPrecondition)
	if want := dir + "/vendor.yaml:7: "; !strings.Contains(err.Error(), want) {
		t.Errorf("no %q in %v", want, err)
	}
}

// TestACDIFileInTheShapeOfGPUVendors has a library of the driver, device nodes under several names, and createContainer
// hooks that look for the container's root in the bundle, as those of the NVIDIA container toolkit do, and put a link
// beside the library.
func TestACDIFileInTheShapeOfGPUVendors(t *testing.T) {
	n, dir, write := cdiNode(t)
	library, hook := filepath.Join(dir, "libvendor.so.1.2"), filepath.Join(dir, "vendor-cdi-hook")
	if err := os.WriteFile(library, []byte("library\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	script := `#!/bin/sh
set -e
bundle=$(tr ',' '\n' | sed -n 's/.*"bundle": *"\([^"]*\)".*/\1/p')
root=$(tr ',{' '\n\n' <"$bundle/config.json" | grep -A2 '"root":' | sed -n 's/.*"path": *"\([^"]*\)".*/\1/p')
ln -s libvendor.so.1.2 "$root/usr/lib/vendor/$2"
`
	if err := os.WriteFile(hook, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	device := func(name string) string {
		return "- name: " + name + "\n  containerEdits:\n    deviceNodes:\n" +
			"    - {path: /dev/vendor0, hostPath: /dev/full, permissions: rwm}\n"
	}
	const uuid = "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"
	write("cdiVersion: 0.5.0\nkind: vendor.com/gpu\ndevices:\n" + device(`"0"`) + device(uuid) + device("all") +
		`containerEdits:
  env: [VENDOR_VISIBLE_DEVICES=void]
  deviceNodes:
  - {path: /dev/vendorctl, hostPath: /dev/zero}
  hooks:
  - {hookName: createContainer, path: ` + hook + `, args: [vendor-cdi-hook, link, libvendor.so.1], env: [DEBUG=false]}
  - {hookName: createContainer, path: ` + hook + `, args: [vendor-cdi-hook, link, libvendor.so]}
  mounts:
  - hostPath: ` + library + `
    containerPath: /usr/lib/vendor/libvendor.so.1.2
    options: [ro, nosuid, nodev, rbind, rprivate]
`)
	nodetest.Pull(t, n, node.Busybox)
	for _, handler := range []string{"", "runc", "crun"} {
		t.Run("handler "+handler, func(t *testing.T) {
			nodetest.Handler(t, n, handler)
			p := nodetest.RunPodHandler(t, n, handler)
			for _, name := range []string{"all", "0", uuid} {
				c := p.Run(wants("vendor.com/gpu=" + name))
				got := c.Sh("echo $VENDOR_VISIBLE_DEVICES; test -c /dev/vendor0 && test -c /dev/vendorctl && echo nodes; " +
					"cd /usr/lib/vendor; cat libvendor.so.1 libvendor.so; (echo x >libvendor.so) 2>&1 || true")
				if !strings.HasPrefix(got, "void\nnodes\nlibrary\nlibrary\n") || !strings.Contains(got, "Read-only") {
					t.Errorf("device %s: %q", name, got)
				}
				c.Remove()
			}
		})
	}
}
