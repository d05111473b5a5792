package faults

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/hostpath/mutetest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// A host path on a file system that does not answer costs the call that names it. Other pods go on, and berthd that is killed meanwhile is
// there again. Seen to fail where berthd itself follows the path's links: the call never returned, with no deadline kept.
func TestAFileSystemThatHangsHoldsUpNothingElse(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	p := nodetest.RunPod(t, n)
	other := p.Run()
	fs := mutetest.Mount(t, t.TempDir())
	hanging := func(c *cri.ContainerConfig) {
		c.Mounts = append(c.Mounts, &cri.Mount{HostPath: fs.Dir + "/volume", ContainerPath: "/v"})
	}
	whole := p.Run(hanging) // as long as it answers
	fs.Mute()

	_, err := p.TryCreate(hanging)
	nodetest.WantCode(t, err, codes.Unavailable)
	if err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("error %v", err)
	}
	creating := make(chan error, 1)
	go func() {
		_, err := p.TryCreate(hanging)
		creating <- err
	}()
	time.Sleep(time.Second)
	if out := other.Sh("echo well"); out != "well" {
		t.Errorf("another container says %q", out)
	}
	if err := n.Kill(); err != nil {
		t.Fatalf("berthd does not die: %v", err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatalf("berthd does not come back: %v", err)
	}
	<-creating
	if out := other.Sh("echo well"); out != "well" {
		t.Errorf("after the kill another container says %q", out)
	}
	if s := whole.Status(); s.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the one that has it mounted is %v", s.State)
	}
	nodetest.RunPod(t, n).Run()
	// What hangs ends when the file system does.
	fs.End()
}
