package ocispec

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/model"
)

// FuzzBuild: whatever a client says, the answer is a spec or an error that an API has a code for.
func FuzzBuild(f *testing.F) {
	full, err := json.Marshal(model.ContainerConfig{
		Command: []string{"x"}, Env: []model.EnvVar{{Key: "A"}}, WorkingDir: "/x",
		Mounts: []model.Mount{{ContainerPath: "/a", HostPath: "/tmp", Propagation: model.PropagationPrivate,
			Image: &model.ImageSpec{}}},
		Devices:    []model.Device{{HostPath: "/dev/null", Permissions: "rwm"}},
		CDIDevices: []string{"a.b/c=d"}, Annotations: map[string]string{"cdi.k8s.io/x": "a.b/c=d"},
		Resources: &model.Resources{CPUSetCPUs: "0-1", Unified: map[string]string{"a.b": "c"},
			HugepageLimit: []model.HugepageLimit{{PageSize: "2MB"}}},
		Security: model.ContainerSecurity{RunAsUser: ptr(int64(1)), RunAsUsername: "u", SELinux: &model.SELinux{Type: "t"},
			Namespaces: model.NamespaceOptions{PID: model.NamespaceContainer,
				User: &model.UserNamespace{UIDs: []model.IDMapping{{Length: 1}}}},
			Seccomp: &model.SecurityProfile{Type: model.ProfileLocalhost, LocalhostRef: "x"}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(full, "web:staff", "SIGRTMIN+3", passwd)
	f.Add([]byte(`{}`), "", "", ":::::\n:")
	root, err := os.MkdirTemp("/dev/shm", "berth-test-fuzz")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { os.RemoveAll(root) })
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, config []byte, user, signal, database string) {
		in := Input{Sandbox: &model.SandboxConfig{}, Container: &model.ContainerConfig{}, Rootfs: root}
		if json.Unmarshal(config, in.Container) != nil {
			return
		}
		in.Image.User, in.Image.StopSignal, in.Image.Cmd = user, signal, []string{"x"}
		in.Handler.SeccompRoot = root
		write(t, filepath.Join(root, "etc/passwd"), database)
		write(t, filepath.Join(root, "etc/group"), database)
		out, err := Build(t.Context(), in)
		switch {
		case err == nil:
			if _, err := json.Marshal(out.Spec); err != nil || len(out.Spec.Process.Args) == 0 {
				t.Errorf("spec %+v: %v", out.Spec, err)
			}
			Exec(out.Spec, []string{"y"}, true)
		case !errdefs.IsInvalidArgument(err) && !errdefs.IsFailedPrecondition(err):
			t.Errorf("an error without a code: %v", err)
		}
	})
}
