package migrate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAKubeletGetsTheSocketWhereverItsConfigurationSaysIt(t *testing.T) {
	const yaml = "kind: KubeletConfiguration\n"
	for name, c := range map[string]struct{ before, after string }{
		"YAML": {
			yaml + "containerRuntimeEndpoint: unix:///old # mine\nmaxPods: 10\n",
			yaml + "containerRuntimeEndpoint: unix:///new.sock # mine\nmaxPods: 10\n",
		},
		"YAML without it": {yaml + "maxPods: 10", yaml + "maxPods: 10\ncontainerRuntimeEndpoint: unix:///new.sock\n"},
		"an empty one": {
			yaml + "containerRuntimeEndpoint: \"\"\n", yaml + "containerRuntimeEndpoint: \"unix:///new.sock\"\n",
		},
		"JSON": {
			`{"kind": "KubeletConfiguration", "containerRuntimeEndpoint": "unix:///old", "maxPods": 10}`,
			`{"kind": "KubeletConfiguration", "containerRuntimeEndpoint": "unix:///new.sock", "maxPods": 10}`,
		},
		"JSON without it": {
			`{"kind": "KubeletConfiguration"}`,
			"{\n  \"containerRuntimeEndpoint\": \"unix:///new.sock\",\"kind\": \"KubeletConfiguration\"}",
		},
		"another document": {"kind: Config\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "kubelet")
			if err := os.WriteFile(path, []byte(c.before), 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := KubeletFile(path, "/new.sock")
			if c.after == "" {
				if err == nil || !strings.Contains(err.Error(), "KubeletConfiguration") {
					t.Errorf("%q, %v", f.Data, err)
				}
			} else if err != nil || string(f.Data) != c.after {
				t.Errorf("%q, %v; want %q", f.Data, err, c.after)
			}
		})
	}
}
