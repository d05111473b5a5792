package nri

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// EnvPlugins names a directory with programs of NRI's repository: device-injector, ulimit-adjuster and logger, each
// built with go build in its directory below plugins/. They are modules of their own, which this module does not depend
// on.
const EnvPlugins = "BERTH_NRI_PLUGINS"

// TestPluginsOfNRIsRepository: berthd starts them, and what annotations ask of them reaches the container, also after a
// restart of berthd. Seen to fail with annotations of another container.
func TestPluginsOfNRIsRepository(t *testing.T) {
	dir := os.Getenv(EnvPlugins)
	if dir == "" {
		t.Skipf("%s names no directory with the plugins of NRI's repository", EnvPlugins)
	}
	nodetest.BerthOnly(t, "Debian's version is older than these plugins")
	n := nodetest.Start(t, node.Options{Prepare: func(n *node.Node) error {
		err := os.MkdirAll(n.NRIPlugins, 0o700)
		for i, name := range []string{"device-injector", "ulimit-adjuster", "logger"} {
			at := filepath.Join(n.NRIPlugins, string(rune('1'+i))+"0-"+name)
			err = errors.Join(err, os.Symlink(filepath.Join(dir, name), at))
		}
		return err
	}})
	source := t.TempDir()
	if err := os.WriteFile(filepath.Join(source, "file"), []byte("mounted"), 0o644); err != nil {
		t.Fatal(err)
	}
	pod := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.Annotations = map[string]string{
			"devices.noderesource.dev/pod": "- {path: /dev/injected, type: c, major: 1, minor: 5, file_mode: 0666}\n",
			"mounts.noderesource.dev/pod": "- {source: " + source +
				", destination: /injected, type: bind, options: [bind, ro]}\n",
			"ulimits.noderesource.dev/container.c": "- {type: RLIMIT_NOFILE, soft: 123, hard: 456}\n",
		}
	})
	c := pod.Run(func(c *cri.ContainerConfig) { c.Metadata.Name = "c" })
	got := c.Sh("head -c 3 /dev/injected | od -An -tx1; cat /injected/file; echo; ulimit -Sn; ulimit -Hn")
	if got := strings.Fields(got); strings.Join(got, " ") != "00 00 00 mounted 123 456" {
		t.Errorf("the container has %q", got)
	}
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	second := pod.Run(func(c *cri.ContainerConfig) { c.Metadata.Name = "d" })
	if got := strings.TrimSpace(second.Sh("cat /injected/file; ulimit -Sn")); !strings.HasPrefix(got, "mounted") ||
		strings.Contains(got, "123") {
		t.Errorf("after a restart another container has %q", got)
	}
}
