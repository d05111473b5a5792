package life

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/pouch"
	"berth/internal/quota"
	"berth/internal/quota/quotatest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// withQuota gives a container disk quotas.
func withQuota(t *testing.T, id string, sizes map[string]string) nodetest.ContainerEdit {
	return func(c *cri.ContainerConfig) {
		add(t, c, &pouch.ContainerConfig{QuotaId: id})
		add(t, c.Linux.Resources, &pouch.LinuxContainerResources{DiskQuota: sizes})
	}
}

// quotaNode is a node whose root is on a file system of its own. Its handler limited has a quota for what names none.
func quotaNode(t *testing.T, kind, options string) (n *node.Node, mount string) {
	t.Helper()
	mount = quotatest.Mount(t, kind, options)
	return nodetest.Start(t, node.Options{
		Root: filepath.Join(mount, "root"), Tables: "[runtimes.limited]\ntype = \"builtin\"\ndisk_quota = \"9m\"\n",
	}), mount
}

// quotaID is the ID that a container's status tells.
func quotaID(t *testing.T, c *nodetest.Container) string {
	t.Helper()
	return added(t, pouchStatus(t, nodetest.DialV1alpha2(c.Pod.Node), c.ID), &pouch.ContainerStatus{}).QuotaId
}

// size is how many KiB df says there are.
func size(c *nodetest.Container, path string) string {
	return c.Sh("df -k " + path + " | tail -1 | awk '{print $2}'")
}

// fits writes MiB to a file and says whether there was room for them.
func fits(t *testing.T, c *nodetest.Container, path string, mib int) bool {
	t.Helper()
	r, err := c.Exec(60, "sh", "-c", fmt.Sprintf("dd if=/dev/zero of=%s bs=1M count=%d conv=fsync 2>&1", path, mib))
	if err != nil {
		t.Fatal(err)
	}
	out := string(r.Stdout)
	if r.ExitCode != 0 && !strings.Contains(out, "No space left") && !strings.Contains(out, "quota exceeded") {
		t.Fatalf("write to %s: %s", path, out)
	}
	return r.ExitCode == 0
}

func TestADiskQuotaThatCannotBeKeptIsRefused(t *testing.T) {
	nodetest.BerthOnly(t, "it has no disk quotas")
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) {
			n, mount := quotaNode(t, kind, "rw")
			p, byHandler := nodetest.RunPod(t, n), nodetest.RunPodHandler(t, n, "limited")
			for claim, make := range map[string]func() error{
				"the root file system": func() error {
					_, err := create(t, p, withQuota(t, "", map[string]string{"/": "10m"}))
					return err
				},
				"a volume": func() error {
					_, err := create(t, p, named(t, "v", "/v"), withQuota(t, "", map[string]string{"/v": "10m"}))
					return err
				},
				"everything": func() error {
					_, err := create(t, p, withQuota(t, "", map[string]string{"": "10m"}))
					return err
				},
				"each": func() error {
					_, err := create(t, p, withQuota(t, "", map[string]string{".*": "10m"}))
					return err
				},
				"an ID":                func() error { _, err := create(t, p, withQuota(t, "-1", nil)); return err },
				"the handler's":        func() error { _, err := create(t, byHandler); return err },
				"the handler's, by v1": func() error { _, err := byHandler.TryCreate(); return err },
			} {
				err := make()
				nodetest.WantCode(t, err, codes.FailedPrecondition)
				if err != nil && (!strings.Contains(err.Error(), kind+" on "+mount) || !strings.Contains(err.Error(), "prjquota")) {
					t.Errorf("%s: the error names neither the file system nor the remedy: %v", claim, err)
				}
			}
			if _, err := create(t, p, withQuota(t, "0", nil)); err != nil {
				t.Errorf("no quota at all: %v", err)
			}
			for claim, edit := range map[string]nodetest.ContainerEdit{
				"a path that is no mount": withQuota(t, "", map[string]string{"/none": "10m"}),
				"a size that is none":     withQuota(t, "", map[string]string{"/": "much"}),
				"an ID below the range":   withQuota(t, "17", nil),
				"an ID that is no number": withQuota(t, "x", nil),
			} {
				_, err := create(t, p, edit)
				if nodetest.WantCode(t, err, codes.InvalidArgument); t.Failed() {
					t.Fatal(claim, err)
				}
			}
			if exists(filepath.Join(n.Root, "volumes", "v")) {
				t.Error("a volume was made for a container that was refused")
			}
		})
	}
}

func TestDiskQuotas(t *testing.T) {
	nodetest.BerthOnly(t, "it has no disk quotas")
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) {
			n, mount := quotaNode(t, kind, "prjquota")
			withVolumes := volumeImage(t, n)
			p := nodetest.RunPod(t, n)

			t.Run("the root file system, and a free ID", func(t *testing.T) {
				c := runNamed(t, p, withQuota(t, "-1", map[string]string{"/": "10m"}))
				if got := size(c, "/"); got != "10240" {
					t.Errorf("df says %s KiB", got)
				}
				if fits(t, c, "/tmp/x", 20) || !fits(t, c, "/tmp/x", 5) {
					t.Error("the limit does not hold")
				}
				id := quotaID(t, c)
				other := runNamed(t, p, withQuota(t, "-1", map[string]string{"/": "20m"}))
				if otherID := quotaID(t, other); id == "" || id == otherID {
					t.Errorf("IDs %q and %q", id, otherID)
				}
				if got := size(other, "/"); got != "20480" || !fits(t, other, "/x", 15) {
					t.Errorf("another container has %s KiB", got)
				}
			})
			t.Run("an ID that is chosen", func(t *testing.T) {
				c := runNamed(t, p, withQuota(t, "20000000", map[string]string{"/": "10m"}))
				if id := quotaID(t, c); id != "20000000" || fits(t, c, "/x", 20) {
					t.Errorf("ID %q", id)
				}
				_, err := create(t, p, withQuota(t, "20000000", map[string]string{"/": "11m"}))
				nodetest.WantCode(t, err, codes.FailedPrecondition)
				if err != nil && !strings.Contains(err.Error(), c.ID[:12]) {
					t.Errorf("%v does not name %s", err, c.ID[:12])
				}
				c.Remove()
				wantFree(t, n, 20000000)
			})
			t.Run("no ID", func(t *testing.T) {
				for _, id := range []string{"", "0"} {
					if got := quotaID(t, runNamed(t, p, withQuota(t, id, map[string]string{"/": "10m"}))); got != "" {
						t.Errorf("the status has %q", got)
					}
				}
			})
			t.Run("the handler's", func(t *testing.T) {
				pod := nodetest.RunPodHandler(t, n, "limited")
				if c := pod.Run(); size(c, "/") != "9216" || fits(t, c, "/x", 20) {
					t.Errorf("df says %s KiB", size(c, "/"))
				}
				if c := runNamed(t, pod, withQuota(t, "", map[string]string{"/": "10m"})); size(c, "/") != "10240" {
					t.Errorf("a container that asks itself has %s KiB", size(c, "/"))
				}
				// The volumes of the image are limited with it.
				c := runNamed(t, pod, withVolumes)
				if !fits(t, c, "/data/x", 6) || fits(t, c, "/y", 6) {
					t.Error("the root file system and a volume of the image do not share the limit")
				}
			})
			t.Run("one mount", func(t *testing.T) {
				c := runNamed(t, p, named(t, "one", "/v"), withQuota(t, "", map[string]string{"/v": "10m"}))
				if size(c, "/v") != "10240" || fits(t, c, "/v/x", 20) {
					t.Errorf("df says %s KiB", size(c, "/v"))
				}
				if !fits(t, c, "/x", 30) {
					t.Error("the root file system is limited, too")
				}
				again := runNamed(t, p, named(t, "one", "/w"), withQuota(t, "", map[string]string{"/w": "10m"}))
				if size(again, "/w") != "10240" || fits(t, again, "/w/y", 5) {
					t.Error("who share a volume do not share its limit")
				}
				_, err := create(t, p, named(t, "one", "/w"), withQuota(t, "", map[string]string{"/w": "11m"}))
				nodetest.WantCode(t, err, codes.FailedPrecondition)
				if got := size(runNamed(t, p, named(t, "one", "/w")), "/w"); got != "10240" {
					t.Errorf("a container without limits sees %s KiB", got)
				}
			})
			t.Run("a volume of the image, filled", func(t *testing.T) {
				c := runNamed(t, p, withVolumes, withQuota(t, "", map[string]string{"/data": "10m"}))
				if got := c.Sh("cat /data/file"); got != "from the image" {
					t.Errorf("it begins with %q", got)
				}
				if size(c, "/data") != "10240" || fits(t, c, "/data/x", 20) {
					t.Errorf("df says %s KiB", size(c, "/data"))
				}
				c.Sh("mv /data/soft /data/moved && ln /data/file /data/another") // neither crosses projects
			})
			t.Run("two that share", func(t *testing.T) {
				c := runNamed(t, p, named(t, "shared", "/v"), withQuota(t, "-1", map[string]string{"/&/v": "10m"}))
				if size(c, "/") != "10240" || size(c, "/v") != "10240" {
					t.Errorf("df says %s and %s KiB", size(c, "/"), size(c, "/v"))
				}
				if !fits(t, c, "/x", 6) || fits(t, c, "/v/x", 6) {
					t.Error("they do not share")
				}
			})
			t.Run("each for itself", func(t *testing.T) {
				host := filepath.Join(mount, "host")
				if err := os.MkdirAll(filepath.Join(host, "was/there"), 0o777); err != nil {
					t.Fatal(err)
				}
				c := runNamed(t, p, withVolumes, named(t, "each", "/v"), withQuota(t, "-1", map[string]string{".*": "10m"}),
					nodetest.Mounts(&cri.Mount{HostPath: host, ContainerPath: "/host"},
						&cri.Mount{HostPath: host, ContainerPath: "/ro", Readonly: true}))
				for _, at := range []string{"/", "/v", "/data", "/host"} {
					if size(c, at) != "10240" || !fits(t, c, at+"/x", 6) || fits(t, c, at+"/y", 6) {
						t.Errorf("%s: df says %s KiB", at, size(c, at))
					}
				}
				if fits(t, c, "/host/was/there/x", 6) {
					t.Error("what was there before is not limited")
				}
				c.Remove()
				nodetest.Eventually(t, 30*time.Second, "the host's directory has no project any more", func() error {
					for _, dir := range []string{host, filepath.Join(host, "was/there")} {
						if id, err := quota.Project(dir); err != nil || id != 0 {
							return fmt.Errorf("%s has %d, %v", dir, id, err)
						}
					}
					return nil
				})
			})
			t.Run("all together", func(t *testing.T) {
				c := runNamed(t, p, withVolumes, named(t, "all", "/v"), withQuota(t, "", map[string]string{"": "10m"}))
				if !fits(t, c, "/x", 3) || !fits(t, c, "/v/x", 3) || fits(t, c, "/data/x", 6) {
					t.Error("they do not share")
				}
			})
			t.Run("on two file systems", func(t *testing.T) {
				_, err := create(t, p, withQuota(t, "", map[string]string{"/&/host": "10m"}),
					nodetest.Mounts(&cri.Mount{HostPath: t.TempDir(), ContainerPath: "/host"}))
				nodetest.WantCode(t, err, codes.FailedPrecondition)
			})
			t.Run("an update", func(t *testing.T) {
				c := runNamed(t, p, named(t, "updated", "/v"), withQuota(t, "-1", map[string]string{"/": "10m"}))
				id := quotaID(t, c)
				update := func(sizes map[string]string) error {
					linux := &cri.LinuxContainerResources{}
					add(t, linux, &pouch.LinuxContainerResources{DiskQuota: sizes})
					_, err := nodetest.DialV1alpha2(n).UpdateContainerResources(nodetest.Context(t),
						&cri.UpdateContainerResourcesRequest{ContainerId: c.ID, Linux: linux})
					return err
				}
				c.Sh("head -c 3000000 /dev/zero >/v/before")
				if err := update(map[string]string{"/": "30m", "/v": "8m"}); err != nil {
					t.Fatal(err)
				}
				if size(c, "/") != "30720" || !fits(t, c, "/x", 20) || size(c, "/v") != "8192" || fits(t, c, "/v/x", 7) {
					t.Errorf("afterwards df says %s and %s KiB", size(c, "/"), size(c, "/v"))
				}
				if quotaID(t, c) != id {
					t.Error("the ID has changed")
				}
				nodetest.WantCode(t, update(map[string]string{"/&/v": "8m"}), codes.FailedPrecondition)
				nodetest.WantCode(t, update(map[string]string{"/none": "8m"}), codes.InvalidArgument)
			})
			t.Run("a daemon that is killed", func(t *testing.T) {
				c := runNamed(t, p, withQuota(t, "-1", map[string]string{"/": "10m"}))
				ready, err := create(t, p, named(t, "kept", "/v"), withQuota(t, "-1", map[string]string{"/&/v": "12m"}))
				if err != nil {
					t.Fatal(err)
				}
				ids := quotaID(t, c) + quotaID(t, ready)
				if err := n.Kill(); err != nil {
					t.Fatal(err)
				}
				if err := n.Restart(nodetest.Context(t)); err != nil {
					t.Fatal(err)
				}
				ready.Start()
				if quotaID(t, c)+quotaID(t, ready) != ids || size(c, "/") != "10240" || fits(t, c, "/x", 20) ||
					size(ready, "/v") != "12288" || fits(t, ready, "/v/x", 20) {
					t.Errorf("IDs %s%s, were %s; df says %s and %s KiB", quotaID(t, c), quotaID(t, ready),
						ids, size(c, "/"), size(ready, "/v"))
				}
				if id := quotaID(t, runNamed(t, p, withQuota(t, "-1", map[string]string{"/": "10m"}))); strings.Contains(ids, id) {
					t.Errorf("%s is given twice", id)
				}
			})
			p.Remove()
			nodetest.Eventually(t, 30*time.Second, "all IDs are free", func() error {
				if left, err := os.ReadDir(filepath.Join(n.Root, "quotas")); err != nil || len(left) > 0 {
					return fmt.Errorf("%v, %v", left, err)
				}
				return nil
			})
			for id := uint32(quota.MinID); id < quota.MinID+40; id++ {
				wantFree(t, n, id)
			}
		})
	}
}

// wantFree waits until nothing bears an ID and nothing limits it.
func wantFree(t *testing.T, n *node.Node, id uint32) {
	t.Helper()
	nodetest.Eventually(t, 30*time.Second, fmt.Sprintf("project %d is free", id), func() error {
		if used, err := quota.Read(n.Root, id); err != nil || used != (quota.Usage{}) {
			return fmt.Errorf("%+v, %v", used, err)
		}
		return nil
	})
}
