package migrate

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// layerStore is a store of images as CRI-O has it, which skopeo writes with CRI-O's own library.
type layerStore struct {
	t    *testing.T
	dir  string // of the store, and of what names it
	from string // the address of a registry
}

func (s *layerStore) root() string { return filepath.Join(s.dir, "storage") }

// pull brings an image of the registry into the store, by a name there. skopeo has a /var/lib of its own: it keeps a
// cache there, wherever the store is.
func (s *layerStore) pull(name, as string) {
	s.t.Helper()
	to := fmt.Sprintf("containers-storage:[overlay@%s+%s]%s", s.root(), filepath.Join(s.dir, "run"), as)
	cmd := exec.CommandContext(nodetest.Context(s.t), "unshare", "--mount", "--propagation", "private",
		"sh", "-ec", `mount -t tmpfs skopeo /var/lib; exec "$@"`, "sh",
		"skopeo", "--insecure-policy", "copy", "--src-tls-verify=false", "--multi-arch=system",
		"docker://"+s.from+"/"+name, to)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("skopeo copy %s: %v\n%s", name, err, out)
	}
}

func (s *layerStore) write(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
	return path
}

func TestImagesOfCRIOComeWithoutARegistry(t *testing.T) {
	if _, err := exec.LookPath("skopeo"); err != nil {
		t.Skipf("nothing writes a store as CRI-O has it: %v", err)
	}
	berth, registry := prepare(t)
	img, err := registrytest.Image(registrytest.WithBusybox(),
		registrytest.Layer(registrytest.File("d/gone", 0o644, "gone"), registrytest.File("d/kept", 0o600, "kept"),
			registrytest.Symlink("links", "/d")),
		registrytest.Layer(registrytest.Whiteout("d/gone"), registrytest.File("big", 0o4755,
			strings.Repeat("0123456789abcdef", 1<<16))),
		registrytest.Env("PATH=/bin"))
	if err != nil {
		t.Fatal(err)
	}
	if err := registry.Push("whole:1", img); err != nil {
		t.Fatal(err)
	}
	d, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	id, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	s := &layerStore{t: t, dir: t.TempDir(), from: registry.Addr()}
	whole, byDigest := node.RegistryHost+"/whole:1", node.RegistryHost+"/whole@"+d.String()
	s.pull("whole:1", whole)
	t.Cleanup(func() {
		// The library leaves its directory mounted on itself.
		if out, err := exec.Command("umount", filepath.Join(s.root(), "overlay")).CombinedOutput(); err != nil {
			t.Logf("umount: %v\n%s", err, out)
		}
	})
	if err := registry.Close(); err != nil {
		t.Fatal(err)
	}
	config := s.write("crio.conf", fmt.Sprintf("[crio]\nroot = %q\n", s.root()))
	before := tree(t, s.root())

	preload, said := filepath.Join(s.dir, "preload"), ""
	b := nodetest.Start(t, node.Options{
		Registry: registry, Tables: fmt.Sprintf("[image]\npreload_dir = %q\n", preload),
		Prepare: func(n *node.Node) error {
			etc := t.TempDir()
			data, err := os.ReadFile(filepath.Join(n.Dir, "config.toml"))
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(etc, "config.toml"), data, 0o600); err != nil {
				return err
			}
			out, err := exec.CommandContext(nodetest.Context(t), berth, "migrate", "crio",
				"--config", config, "--containers", s.dir, "--to", etc).CombinedOutput()
			said = string(out)
			t.Logf("berth migrate crio: %v\n%s", err, out)
			return nil
		},
	})
	if !strings.Contains(said, "images: 1 packed, 0 there already, 0 not") {
		t.Errorf("the command says\n%s", said)
	}
	nodetest.Eventually(t, time.Minute, "the images are there", func() error {
		for _, ref := range []string{whole, byDigest} {
			if imageOf(t, b, ref) == nil {
				return fmt.Errorf("%s is not", ref)
			}
		}
		return nil
	})
	nodetest.Eventually(t, time.Minute, "the archives are gone", func() error {
		if entries, err := os.ReadDir(preload); err != nil || len(entries) > 0 {
			return fmt.Errorf("there are %v, %v", entries, err)
		}
		return nil
	})
	got := works(t, b, byDigest)
	if got.Id != id.String() || !slices.Equal(got.RepoTags, []string{whole}) ||
		!slices.Equal(got.RepoDigests, []string{byDigest}) {
		t.Errorf("the image is %v, want the ID %s and the digest %s", got, id, d)
	}
	p := nodetest.RunPod(t, b)
	c := p.Run(func(c *cri.ContainerConfig) {
		c.Image.Image, c.Command = whole, []string{"sh", "-c", "sleep 3600"}
	})
	files := c.Sh("ls /d; stat -c %a /d/kept /big; cat /links/kept; wc -c </big")
	if files != "kept\n600\n4755\nkept1048576" {
		t.Errorf("the files are %q", files)
	}
	saved := filepath.Join(s.dir, "saved.tar")
	if out, err := exec.CommandContext(nodetest.Context(t), berth, "--address", b.Address,
		"save", "-o", saved, whole).CombinedOutput(); err != nil {
		t.Errorf("save: %v\n%s", err, out)
	}
	if after := tree(t, s.root()); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Error("CRI-O's store is another one")
	}
}
