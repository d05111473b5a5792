package life

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// TestAPodThatCanNeitherBeStartedNorRemovedIsListed: as where a CNI plugin asks an API server that is away, for ADD and
// for DEL. A kubelet finds the pod, stops it, and runs the next attempt. The pod was hidden, with its name and all that
// it had, until the next start of berthd. A stop that a client asks for does not need the plugin, which has never
// joined the pod. One that it has joined is stopped once it succeeds, and has its network namespace until then. Seen to
// fail where the plugin decided for both, and where the namespace went with the first try.
func TestAPodThatCanNeitherBeStartedNorRemovedIsListed(t *testing.T) {
	nodetest.BerthOnly(t, "it takes a plugin of its own by Berth's configuration")
	bin := t.TempDir()
	plugin := func(script string) {
		t.Helper()
		made := filepath.Join(bin, "new")
		if err := os.WriteFile(made, []byte("#!/bin/sh\ncat >/dev/null\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(made, filepath.Join(bin, "away")); err != nil {
			t.Fatal(err)
		}
	}
	const works = `[ $CNI_COMMAND = ADD ] && echo '{"cniVersion":"1.0.0","ips":[{"address":"10.99.7.2/24"}]}'; exit 0`
	plugin(works)
	n := nodetest.Start(t, node.Options{
		Tables: fmt.Sprintf("[network]\ncni_bin_dirs = [%q]\n", bin),
		Prepare: func(n *node.Node) error {
			return os.WriteFile(filepath.Join(n.CNIConfDir, "10.conflist"),
				[]byte(`{"cniVersion":"1.0.0","name":"away","plugins":[{"type":"away"}]}`), 0o644)
		},
	})
	ctx := nodetest.Context(t)
	events, err := n.Runtime.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := events.Header(); err != nil {
		t.Fatal(err)
	}
	plugin("exit 3")
	config := nodetest.PodConfig(n)
	if _, err := n.Runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config}); err == nil {
		t.Fatal("it runs without a network")
	}
	listed := func() []*cri.PodSandbox {
		t.Helper()
		list, err := n.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return list.Items
	}
	all := listed()
	if len(all) != 1 || all[0].State != cri.PodSandboxState_SANDBOX_NOTREADY ||
		all[0].Metadata.Uid != config.Metadata.Uid {
		t.Fatalf("listed are %v", all)
	}
	failed := nodetest.Adopt(t, n, all[0].Id, config)
	for _, want := range []cri.ContainerEventType{
		cri.ContainerEventType_CONTAINER_CREATED_EVENT, cri.ContainerEventType_CONTAINER_STOPPED_EVENT,
	} {
		e, err := events.Recv()
		if err != nil || e.ContainerEventType != want || e.ContainerId != failed.ID ||
			e.PodSandboxStatus.GetState() != cri.PodSandboxState_SANDBOX_NOTREADY {
			t.Errorf("the event is %v, %v; want %v", e, err, want)
		}
	}
	if s := failed.Status(); s.State != cri.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("it is %v", s.State)
	}
	_, err = n.Runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: failed.ID})
	if err != nil {
		t.Errorf("stop a pod that was never joined: %v", err)
	}
	_, err = failed.TryCreate()
	nodetest.WantCode(t, err, codes.FailedPrecondition)

	plugin(works)
	failed.Stop()
	failed.Stop()
	next := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.Metadata = &cri.PodSandboxMetadata{
			Name: config.Metadata.Name, Namespace: config.Metadata.Namespace, Uid: config.Metadata.Uid, Attempt: 1,
		}
	})
	failed.Remove()
	if all := listed(); len(all) != 1 || all[0].Id != next.ID {
		t.Errorf("listed are %v, want %s", all, next.ID)
	}

	plugin("exit 3")
	_, err = n.Runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: next.ID})
	nodetest.WantCode(t, err, codes.Internal)
	said := filepath.Join(bin, "netns")
	plugin("[ -e \"$CNI_NETNS\" ] && echo it is there >" + said + "; exit 0")
	next.Stop()
	if data, err := os.ReadFile(said); err != nil || string(data) != "it is there\n" {
		t.Errorf("the namespace at the second try: %q, %v", data, err)
	}
}
