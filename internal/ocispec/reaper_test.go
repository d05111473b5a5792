package ocispec

import (
	"testing"

	"berth/internal/model"
)

// TestTheRuntimeOfASandboxIsToldOfThePod: by the annotations that containerd has. Kata Containers reads the sizes.
func TestTheRuntimeOfASandboxIsToldOfThePod(t *testing.T) {
	spec, err := Reaper(ReaperInput{SandboxID: "p", Rootfs: t.TempDir(), Host: &Host{}, Sandbox: &model.SandboxConfig{
		Metadata: model.SandboxMetadata{Name: "web", Namespace: "shop", UID: "u"}, LogDirectory: "/var/log/pods/x",
		Resources: &model.Resources{CPUPeriod: 100000, CPUQuota: 50000, CPUShares: 512, MemoryLimit: 1 << 20},
	}})
	if err != nil {
		t.Fatal(err)
	}
	const prefix = "io.kubernetes.cri."
	for key, want := range map[string]string{
		"container-type": "sandbox", "sandbox-id": "p", "sandbox-name": "web", "sandbox-namespace": "shop",
		"sandbox-uid": "u", "sandbox-log-directory": "/var/log/pods/x", "sandbox-cpu-period": "100000",
		"sandbox-cpu-quota": "50000", "sandbox-cpu-shares": "512", "sandbox-memory": "1048576",
	} {
		if got := spec.Annotations[prefix+key]; got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
}

// TestTheReaperHasAnIDOfItsUserNamespace, which may have fewer IDs than the reaper's own.
func TestTheReaperHasAnIDOfItsUserNamespace(t *testing.T) {
	ids := func(mappings ...model.IDMapping) *model.UserNamespace {
		return &model.UserNamespace{UIDs: mappings, GIDs: []model.IDMapping{{HostID: 200000, Length: 65536}}}
	}
	for want, user := range map[uint32]*model.UserNamespace{
		0:     ids(model.IDMapping{HostID: 200000, Length: 1}),
		999:   ids(model.IDMapping{HostID: 200000, Length: 1000}, model.IDMapping{ContainerID: 70000, HostID: 1, Length: 9}),
		65534: ids(model.IDMapping{ContainerID: 65534, HostID: 5, Length: 1}, model.IDMapping{HostID: 200000, Length: 9}),
		65535: ids(model.IDMapping{HostID: 200000, Length: 1 << 20}),
	} {
		spec, err := Reaper(ReaperInput{Rootfs: t.TempDir(), Host: &Host{}, User: user})
		if err != nil {
			t.Fatal(err)
		}
		if u := spec.Process.User; u.UID != want || u.GID != reaperUser {
			t.Errorf("%+v: user %d, group %d", user.UIDs, u.UID, u.GID)
		}
	}
}
