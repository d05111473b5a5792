package parts

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/model"
	"berth/internal/resolvconf"
)

func TestResolvConf(t *testing.T) {
	dir := t.TempDir()
	p := &Maker{ResolvConf: resolvconf.Files{Node: filepath.Join(dir, "node"), Upstream: filepath.Join(dir, "upstream")}}
	stub, upstream := "nameserver 127.0.0.53\n", "nameserver 192.0.2.1\n"
	for path, content := range map[string]string{p.ResolvConf.Node: stub, p.ResolvConf.Upstream: upstream} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	inNode := model.SandboxConfig{}
	inNode.Security.Namespaces.Network = model.NamespaceNode
	for name, c := range map[string]struct {
		cfg  model.SandboxConfig
		want string
	}{
		"with DNS of its own": {
			cfg: model.SandboxConfig{DNS: &model.DNS{
				Servers: []string{"10.0.0.10"}, Searches: []string{"a.svc", "svc"}, Options: []string{"ndots:5"},
			}},
			want: "search a.svc svc\nnameserver 10.0.0.10\noptions ndots:5\n",
		},
		"with a network of its own": {want: upstream},
		"with DNS that is empty":    {cfg: model.SandboxConfig{DNS: &model.DNS{}}, want: upstream},
		"in the node's network":     {cfg: inNode, want: stub},
	} {
		if got, err := p.resolvConf(&c.cfg); err != nil || string(got) != c.want {
			t.Errorf("a pod %s: %q, %v", name, got, err)
		}
	}
	if _, err := p.resolvConf(&model.SandboxConfig{
		DNS: &model.DNS{Servers: []string{"1.1.1.1\nnameserver 6.6.6.6"}}}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a line break: %v", err)
	}
}
