package life

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/pouch"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// paused is PouchContainer's state of a container.
const paused = cri.ContainerState(4)

// add puts what PouchContainer adds to a message into it.
func add(t testing.TB, to, ext proto.Message) {
	t.Helper()
	bytes, err := proto.Marshal(ext)
	if err != nil {
		t.Fatal(err)
	}
	m := to.ProtoReflect()
	m.SetUnknown(append(m.GetUnknown(), bytes...))
}

// added reads it.
func added[M proto.Message](t testing.TB, from proto.Message, ext M) M {
	t.Helper()
	if err := proto.Unmarshal(from.ProtoReflect().GetUnknown(), ext); err != nil {
		t.Fatal(err)
	}
	return ext
}

func pouchStatus(t testing.TB, d *nodetest.V1alpha2, id string) *cri.ContainerStatus {
	t.Helper()
	st, err := d.ContainerStatus(nodetest.Context(t), &cri.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		t.Fatal(err)
	}
	return st.Status
}

// pouchResources are the limits that a status tells of.
func pouchResources(t testing.TB, st *cri.ContainerStatus) (*cri.LinuxContainerResources,
	*pouch.LinuxContainerResources) {
	t.Helper()
	linux := &cri.LinuxContainerResources{}
	if err := proto.Unmarshal(added(t, st, &pouch.ContainerStatus{}).Resources, linux); err != nil {
		t.Fatal(err)
	}
	return linux, added(t, linux, &pouch.LinuxContainerResources{})
}

func TestAPodLivesThroughV1alpha2(t *testing.T) {
	n := nodetest.Shared(t)
	d, ctx := nodetest.DialV1alpha2(n), nodetest.Context(t)
	version, err := d.Version(ctx, &cri.VersionRequest{Version: "0.1.0"})
	if err != nil || version.RuntimeApiVersion != "v1alpha2" || version.RuntimeName != "berth" {
		t.Fatalf("%v, %v", version, err)
	}
	if _, err := d.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: node.Busybox}}); err != nil {
		t.Fatal(err)
	}
	config := nodetest.PodConfig(n)
	pod, err := d.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	p := nodetest.Adopt(t, n, pod.PodSandboxId, config)
	ctr, err := d.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: pod.PodSandboxId, SandboxConfig: config,
		Config: p.ContainerConfig(nodetest.Sh("echo hello; sleep 3600"))})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: ctr.ContainerId}); err != nil {
		t.Fatal(err)
	}
	out, err := d.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: ctr.ContainerId,
		Cmd: []string{"echo", "there"}, Timeout: 10})
	if err != nil || string(out.Stdout) != "there\n" {
		t.Errorf("%v, %v", out, err)
	}
	// What was made through one API is there in the other.
	list, err := n.Runtime.ListContainers(ctx,
		&cri.ListContainersRequest{Filter: &cri.ContainerFilter{Id: ctr.ContainerId}})
	if err != nil || len(list.Containers) != 1 || list.Containers[0].State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := d.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: ctr.ContainerId}); err != nil {
		t.Fatal(err)
	}
	if st := pouchStatus(t, d, ctr.ContainerId); st.State != cri.ContainerState_CONTAINER_EXITED || st.ExitCode != 137 {
		t.Errorf("%v", st)
	}
	if _, err := d.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: pod.PodSandboxId}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: pod.PodSandboxId}); err != nil {
		t.Fatal(err)
	}
	_, err = n.Runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: pod.PodSandboxId})
	nodetest.WantCode(t, err, codes.NotFound)
}

func TestAPodOfV1IsStoppedAndRemovedThroughV1alpha2(t *testing.T) {
	n := nodetest.Shared(t)
	d, ctx := nodetest.DialV1alpha2(n), nodetest.Context(t)
	p := nodetest.RunPod(t, n)
	c := p.Run()
	if st := pouchStatus(t, d, c.ID); st.State != cri.ContainerState_CONTAINER_RUNNING ||
		st.Metadata.Name != c.Config.Metadata.Name {
		t.Errorf("%v", st)
	}
	if _, err := d.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.ID}); err != nil {
		t.Fatal(err)
	}
	if s := c.Status(); s.State != cri.ContainerState_CONTAINER_EXITED {
		t.Errorf("%v", s.State)
	}
	if _, err := d.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.ID}); err != nil {
		t.Fatal(err)
	}
	pods, err := n.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{Id: p.ID}})
	if err != nil || len(pods.Items) != 0 {
		t.Errorf("%v, %v", pods, err)
	}
}

func TestAPausedContainerIsFrozenUntilItIsUnpaused(t *testing.T) {
	n := nodetest.Shared(t)
	for _, handler := range []string{"", "runc", "crun"} {
		t.Run("handler "+handler, func(t *testing.T) {
			nodetest.Handler(t, n, handler)
			d, ctx := nodetest.DialV1alpha2(n), nodetest.Context(t)
			p := nodetest.RunPodHandler(t, n, handler)
			c := p.Run(nodetest.Sh("i=0; while :; do i=$((i+1)); echo $i > /next; mv /next /n; sleep 0.01; done"))
			count := func() (got string) {
				t.Helper()
				nodetest.Eventually(t, 30*time.Second, "it has counted", func() error {
					data, err := os.ReadFile(filepath.Join(fmt.Sprintf("/proc/%d/root", containerPID(t, n, c.ID)), "n"))
					if got = string(data); err == nil && got == "" {
						err = fmt.Errorf("it is writing")
					}
					return err
				})
				return got
			}
			count()
			for range 2 { // twice is as once
				if _, err := d.Pouch.PauseContainer(ctx, &pouch.PauseContainerRequest{ContainerId: c.ID}); err != nil {
					t.Fatal(err)
				}
			}
			before := count()
			if st := pouchStatus(t, d, c.ID); st.State != paused {
				t.Errorf("v1alpha2 says %v", st.State)
			}
			if st := c.Status(); st.State != cri.ContainerState_CONTAINER_RUNNING || st.Reason != "Paused" {
				t.Errorf("v1 says %v, %q", st.State, st.Reason)
			}
			for state, want := range map[cri.ContainerState]int{paused: 1, cri.ContainerState_CONTAINER_RUNNING: 0} {
				list, err := d.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{Id: c.ID,
					State: &cri.ContainerStateValue{State: state}}})
				if err != nil || len(list.Containers) != want {
					t.Errorf("filter %v: %v, %v", state, list, err)
				}
			}
			list, err := n.Runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{Id: c.ID,
				State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}}})
			if err != nil || len(list.Containers) != 1 {
				t.Errorf("v1 lists %v, %v", list, err)
			}
			_, err = c.Exec(60, "true")
			nodetest.WantCode(t, err, codes.FailedPrecondition)
			_, err = d.Exec(ctx, &cri.ExecRequest{ContainerId: c.ID, Cmd: []string{"true"}, Stdout: true})
			nodetest.WantCode(t, err, codes.FailedPrecondition)
			if stats, err := n.Runtime.ContainerStats(ctx, &cri.ContainerStatsRequest{ContainerId: c.ID}); err != nil ||
				stats.Stats.GetMemory().GetWorkingSetBytes().GetValue() == 0 {
				t.Errorf("%v, %v", stats, err)
			}
			if now := count(); now != before {
				t.Errorf("it has counted from %s to %s", before, now)
			}
			for range 2 {
				if _, err := d.Pouch.UnpauseContainer(ctx, &pouch.UnpauseContainerRequest{ContainerId: c.ID}); err != nil {
					t.Fatal(err)
				}
			}
			nodetest.Eventually(t, 30*time.Second, "it counts again", func() error {
				if count() == before {
					return fmt.Errorf("it stands at %s", before)
				}
				return nil
			})
			if st := pouchStatus(t, d, c.ID); st.State != cri.ContainerState_CONTAINER_RUNNING {
				t.Errorf("v1alpha2 says %v", st.State)
			}
			if got := c.Sh("echo again"); got != "again" {
				t.Errorf("%q", got)
			}
		})
	}
}

func containerPID(t testing.TB, n *node.Node, id string) int {
	t.Helper()
	pid, err := n.ContainerPID(id)
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestAPausedContainerIsStoppedAndRemoved(t *testing.T) {
	n := nodetest.Shared(t)
	d, ctx := nodetest.DialV1alpha2(n), nodetest.Context(t)
	p := nodetest.RunPod(t, n)
	pause := func(c *nodetest.Container) {
		t.Helper()
		if _, err := d.Pouch.PauseContainer(ctx, &pouch.PauseContainerRequest{ContainerId: c.ID}); err != nil {
			t.Fatal(err)
		}
	}
	// It takes its stop signal, as if it had not been paused.
	graceful := p.Run(nodetest.Sh("trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done"))
	graceful.WaitLog("ready")
	pause(graceful)
	graceful.Stop(30)
	if st := graceful.Status(); st.ExitCode != 7 || st.State != cri.ContainerState_CONTAINER_EXITED {
		t.Errorf("%v", st)
	}
	killed, removed := p.Run(), p.Run()
	pause(killed)
	killed.Stop(0)
	if st := killed.Status(); st.ExitCode != 137 {
		t.Errorf("%v", st)
	}
	pause(removed)
	removed.Remove()
	withPod := p.Run()
	pause(withPod)
	p.Stop()
	if st := withPod.Status(); st.State != cri.ContainerState_CONTAINER_EXITED {
		t.Errorf("%v", st)
	}
	for _, call := range []error{
		func() error {
			_, err := d.Pouch.PauseContainer(ctx, &pouch.PauseContainerRequest{ContainerId: killed.ID})
			return err
		}(),
		func() error {
			_, err := d.Pouch.UnpauseContainer(ctx, &pouch.UnpauseContainerRequest{ContainerId: killed.ID})
			return err
		}(),
	} {
		nodetest.WantCode(t, call, codes.FailedPrecondition)
	}
	_, err := d.Pouch.PauseContainer(ctx, &pouch.PauseContainerRequest{ContainerId: "none"})
	nodetest.WantCode(t, err, codes.NotFound)
	_, err = d.Pouch.PauseContainer(ctx, &pouch.PauseContainerRequest{})
	nodetest.WantCode(t, err, codes.InvalidArgument)
}

func TestAPauseOutlivesTheDaemon(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	d, ctx := nodetest.DialV1alpha2(n), nodetest.Context(t)
	p := nodetest.RunPod(t, n)
	frozen, thawed := p.Run(), p.Run()
	for _, c := range []*nodetest.Container{frozen, thawed} {
		if _, err := d.Pouch.PauseContainer(ctx, &pouch.PauseContainerRequest{ContainerId: c.ID}); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	thaw(t, thawed) // somebody did it meanwhile: what the kernel says holds
	if err := n.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if st := pouchStatus(t, d, frozen.ID); st.State != paused {
		t.Errorf("the paused one is %v", st.State)
	}
	if st := pouchStatus(t, d, thawed.ID); st.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the thawed one is %v", st.State)
	}
	if _, err := d.Pouch.UnpauseContainer(ctx, &pouch.UnpauseContainerRequest{ContainerId: frozen.ID}); err != nil {
		t.Fatal(err)
	}
	if got := frozen.Sh("echo on"); got != "on" {
		t.Errorf("%q", got)
	}
}

// thaw thaws a container behind the daemon's back.
func thaw(t testing.TB, c *nodetest.Container) {
	t.Helper()
	thawed := false
	for _, dir := range cgroups(t, c) {
		for file, state := range map[string]string{"freezer.state": "THAWED", "cgroup.freeze": "0"} {
			if file = filepath.Join(dir, file); !exists(file) {
				continue
			}
			if err := os.WriteFile(file, []byte(state), 0); err != nil {
				t.Fatal(err)
			}
			thawed = true
		}
	}
	if !thawed {
		t.Fatal("no cgroup of the container can be thawed")
	}
}

// started starts a sandbox again.
func started(ctx context.Context, d *nodetest.V1alpha2, id string) error {
	_, err := d.Pouch.StartPodSandbox(ctx, &pouch.StartPodSandboxRequest{PodSandboxId: id})
	return err
}

func TestASandboxThatStoppedByAccidentComesBack(t *testing.T) {
	for _, network := range []struct {
		name    string
		options node.Options
	}{{"bridge", node.Options{}}, {"CNI", node.Options{CNI: true}}} {
		t.Run(network.name, func(t *testing.T) {
			n := nodetest.Start(t, network.options)
			d, ctx := nodetest.DialV1alpha2(n), nodetest.Context(t)
			shared := func(c *cri.PodSandboxConfig) {
				c.Linux.SecurityContext.NamespaceOptions = &cri.NamespaceOption{Pid: cri.NamespaceMode_POD}
			}
			port := freePort(t)
			mapped := func(c *cri.PodSandboxConfig) {
				c.PortMappings = []*cri.PortMapping{{ContainerPort: 8080, HostPort: port}}
			}
			plain, init, other := nodetest.RunPod(t, n, mapped), nodetest.RunPod(t, n, shared), nodetest.RunPod(t, n)
			// Nothing has happened yet.
			nodetest.WantCode(t, started(ctx, d, plain.ID), codes.FailedPrecondition)

			back := func(p *nodetest.Pod, ip string, config *cri.PodSandboxStatus) {
				t.Helper()
				if err := started(ctx, d, p.ID); err != nil {
					t.Fatal(err)
				}
				now := p.Status()
				if now.State != cri.PodSandboxState_SANDBOX_READY || now.Network.Ip != ip || now.CreatedAt != config.CreatedAt ||
					!proto.Equal(now.Metadata, config.Metadata) {
					t.Errorf("it was %v, it is %v", config, now)
				}
				if got := p.Output("ip -4 addr show eth0"); !strings.Contains(got, "inet "+ip+"/") {
					t.Errorf("its container has %q, not %s", got, ip)
				}
			}
			// Its init dies, and takes what runs in the PID namespace along.
			ip, was := init.IP(), init.Status()
			c := init.Run()
			kill(t, containerPID(t, n, init.ID))
			nodetest.Eventually(t, 30*time.Second, "the pod is not ready", func() error {
				if st := init.Status(); st.State != cri.PodSandboxState_SANDBOX_NOTREADY {
					return fmt.Errorf("it is %v", st.State)
				}
				return nil
			})
			back(init, ip, was)
			if st := c.WaitExit(); st.ExitCode != 137 {
				t.Errorf("%v", st)
			}
			// Its network namespace goes: nobody tells the daemon, it looks.
			ip, was = plain.IP(), plain.Status()
			unpin(t, filepath.Join(n.State, "pods", plain.ID, "ns", "net"))
			back(plain, ip, was)
			plain.Run(web("back", 8080))
			wantPage(t, fmt.Sprintf("127.0.0.1:%d", port), "back")

			// The node goes down.
			otherIP, otherWas := other.IP(), other.Status()
			if err := n.Reboot(); err != nil {
				t.Fatal(err)
			}
			if err := n.Restart(ctx); err != nil {
				t.Fatal(err)
			}
			if st := other.Status(); st.State != cri.PodSandboxState_SANDBOX_NOTREADY {
				t.Fatalf("after the reboot it is %v", st.State)
			}
			// A pod that comes now gets an address of its own, though the others' are not in use.
			newcomer := nodetest.RunPod(t, n)
			if got := newcomer.IP(); got == ip || got == otherIP {
				t.Errorf("the newcomer has taken %s", got)
			}
			back(other, otherIP, otherWas)
			back(plain, ip, was)

			other.Stop()
			nodetest.WantCode(t, started(ctx, d, other.ID), codes.FailedPrecondition)
			nodetest.WantCode(t, started(ctx, d, "none"), codes.NotFound)
			nodetest.WantCode(t, started(ctx, d, ""), codes.InvalidArgument)
		})
	}
}

func kill(t testing.TB, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// unpin takes the pin of a namespace away.
func unpin(t testing.TB, path string) {
	t.Helper()
	if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
		t.Fatalf("unmount %s: %v", path, err)
	}
}

// TestAPodThatHasLostANamespaceIsNotReady: somebody has unmounted its pin, or removed the file as well,
// and no call tells the daemon. Seen to fail where changes of mounts are not heard of.
func TestAPodThatHasLostANamespaceIsNotReady(t *testing.T) {
	nodetest.NodeMounts(t)
	nodetest.BerthOnly(t, "pins are Berth's own")
	n := nodetest.Start(t, node.Options{})
	modes := func(o *cri.NamespaceOption) func(*cri.PodSandboxConfig) {
		return func(c *cri.PodSandboxConfig) { c.Linux.SecurityContext.NamespaceOptions = o }
	}
	each := modes(&cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER})
	shared := modes(&cri.NamespaceOption{Pid: cri.NamespaceMode_POD})
	hosts := modes(&cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER, Network: cri.NamespaceMode_NODE})
	whole := []*nodetest.Pod{nodetest.RunPod(t, n, each), nodetest.RunPod(t, n, shared), nodetest.RunPod(t, n, hosts)}
	losers := []struct {
		lost   string
		remove bool
		pod    *nodetest.Pod
	}{
		{"net", false, nodetest.RunPod(t, n, each)},
		{"uts", true, nodetest.RunPod(t, n, each)},
		{"ipc", false, nodetest.RunPod(t, n, hosts)},
		{"net", true, nodetest.RunPod(t, n, shared)},
		{"pid", false, nodetest.RunPod(t, n, shared)},
	}
	for _, l := range losers {
		l.pod.Run()
		pin := filepath.Join(n.State, "pods", l.pod.ID, "ns", l.lost)
		unpin(t, pin)
		if l.remove {
			if err := os.Remove(pin); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, l := range losers {
		nodetest.Eventually(t, time.Minute, "a pod without its "+l.lost+" namespace is not ready", func() error {
			if st := l.pod.Status(); st.State != cri.PodSandboxState_SANDBOX_NOTREADY {
				return fmt.Errorf("it is %v", st.State)
			}
			return nil
		})
		log, err := os.ReadFile(n.DaemonLog)
		if err != nil {
			t.Fatal(err)
		}
		told := slices.ContainsFunc(strings.Split(string(log), "\n"), func(line string) bool {
			return strings.Contains(line, l.pod.ID[:12]) && strings.Contains(line, l.lost+" namespace")
		})
		if !told {
			t.Errorf("the log does not say that pod %s has lost its %s namespace", l.pod.ID[:12], l.lost)
		}
	}
	for _, p := range whole {
		if st := p.Status(); st.State != cri.PodSandboxState_SANDBOX_READY {
			t.Errorf("a pod that has lost nothing is %v", st.State)
		}
	}
	for _, l := range losers {
		l.pod.Stop()
		l.pod.Remove()
	}
}

func TestTheCommandLinePausesAndUnpauses(t *testing.T) {
	n := nodetest.Shared(t)
	binaries, err := node.Binaries(nodetest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	p := nodetest.RunPod(t, n)
	one, two := p.Run(), p.Run()
	berth := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(nodetest.Context(t), filepath.Join(binaries, "berth"),
			append([]string{"--address", n.Address}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("berth %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	states := func() string {
		d := nodetest.DialV1alpha2(n)
		return fmt.Sprint(pouchStatus(t, d, one.ID).State, pouchStatus(t, d, two.ID).State)
	}
	pod, container := p.Config.Metadata.Name, p.Config.Metadata.Name+"/"+one.Config.Metadata.Name
	berth("pause", container)
	if got := states(); got != "4 CONTAINER_RUNNING" {
		t.Errorf("after one was paused: %s", got)
	}
	if got := berth("ps", pod); !strings.Contains(got, "paused") || !strings.Contains(got, "running") {
		t.Errorf("ps says\n%s", got)
	}
	berth("pause", pod)
	if got := states(); got != "4 4" {
		t.Errorf("after the pod was paused: %s", got)
	}
	berth("unpause", pod)
	if got := states(); got != "CONTAINER_RUNNING CONTAINER_RUNNING" {
		t.Errorf("after the pod was unpaused: %s", got)
	}
}

func TestANamedVolumeIsKeptUntilItIsRemoved(t *testing.T) {
	n := nodetest.Shared(t)
	d, ctx := nodetest.DialV1alpha2(n), nodetest.Context(t)
	p := nodetest.RunPod(t, n)
	run := func(script string) *nodetest.Container {
		t.Helper()
		config := p.ContainerConfig(nodetest.Sh(script))
		mount := &cri.Mount{ContainerPath: "/data"}
		add(t, mount, &pouch.Mount{Name: "kept-volume"})
		config.Mounts = []*cri.Mount{mount}
		nodetest.Pull(t, n, node.Busybox)
		made, err := d.CreateContainer(ctx,
			&cri.CreateContainerRequest{PodSandboxId: p.ID, Config: config, SandboxConfig: p.Config})
		if err != nil {
			t.Fatal(err)
		}
		c := &nodetest.Container{Pod: p, ID: made.ContainerId, Config: config}
		c.Start()
		return c
	}
	remove := func() error {
		_, err := d.Volumes.RemoveVolume(ctx, &pouch.RemoveVolumeRequest{VolumeName: "kept-volume"})
		return err
	}
	writer := run("echo kept > /data/f")
	if st := writer.WaitExit(); st.ExitCode != 0 {
		t.Fatalf("%v", st)
	}
	mounts := pouchStatus(t, d, writer.ID).Mounts
	if len(mounts) != 1 || added(t, mounts[0], &pouch.Mount{}).Name != "kept-volume" {
		t.Errorf("the status tells %v", mounts)
	}
	nodetest.WantCode(t, remove(), codes.FailedPrecondition) // an ended container has it, too
	writer.Remove()
	reader := run("cat /data/f")
	if reader.WaitExit(); reader.Stdout() != "kept\n" {
		t.Errorf("the volume holds %q", reader.Stdout())
	}
	reader.Remove()
	if err := remove(); err != nil {
		t.Fatal(err)
	}
	if st := run("test ! -e /data/f").WaitExit(); st.ExitCode != 0 {
		t.Error("a removed volume comes back with what it had")
	}
	p.Remove()
	if err := remove(); err != nil {
		t.Fatal(err)
	}
}

func TestAPauseHoldsUpNobodyElse(t *testing.T) {
	n := nodetest.Shared(t)
	d, ctx := nodetest.DialV1alpha2(n), nodetest.Context(t)
	p := nodetest.RunPod(t, n)
	c := p.Run()
	ended := make(chan error, 1)
	go func() {
		_, err := c.Exec(2, "sh", "-c", "echo > /begun; sleep 3600")
		ended <- err
	}()
	nodetest.Eventually(t, 30*time.Second, "the exec runs", func() error {
		_, err := os.Stat(filepath.Join(fmt.Sprintf("/proc/%d/root", containerPID(t, n, c.ID)), "begun"))
		return err
	})
	if _, err := d.Pouch.PauseContainer(ctx, &pouch.PauseContainerRequest{ContainerId: c.ID}); err != nil {
		t.Fatal(err)
	}
	// Its timeout ends the exec, frozen as it is, as far as its caller can tell.
	select {
	case err := <-ended:
		nodetest.WantCode(t, err, codes.DeadlineExceeded)
	case <-time.After(30 * time.Second):
		t.Error("an exec that was paused does not end by its timeout")
	}
	// Limits of a paused container change.
	if err := update(t, c, &pouch.LinuxContainerResources{MemoryReservation: 8 << 20}); err != nil {
		t.Error(err)
	}
	if st := pouchStatus(t, d, c.ID); st.State != paused {
		t.Errorf("after an update it is %v", st.State)
	}
	if _, err := d.Pouch.UnpauseContainer(ctx, &pouch.UnpauseContainerRequest{ContainerId: c.ID}); err != nil {
		t.Fatal(err)
	}
	if got := c.Sh("echo on"); got != "on" {
		t.Errorf("%q", got)
	}
}

// A start of a sandbox that a kill of the daemon cuts off can be made again, and what it made does not pile up:
// the node's end counts what is left.
func TestAStartOfASandboxThatIsCutOffIsMadeAgain(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions = &cri.NamespaceOption{Pid: cri.NamespaceMode_POD}
	})
	ip := p.IP()
	for round := range 12 {
		d := nodetest.DialV1alpha2(n)
		if round == 0 || p.Status().State == cri.PodSandboxState_SANDBOX_READY {
			unpin(t, filepath.Join(n.State, "pods", p.ID, "ns", "net"))
		}
		cut := make(chan struct{})
		go func() {
			defer close(cut)
			_ = started(nodetest.Context(t), d, p.ID)
		}()
		time.Sleep(time.Duration(round) * 3 * time.Millisecond) // into the midst of it, wherever that is
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
		<-cut
		if err := n.Restart(nodetest.Context(t)); err != nil {
			t.Fatal(err)
		}
	}
	if p.Status().State != cri.PodSandboxState_SANDBOX_READY {
		if err := started(nodetest.Context(t), nodetest.DialV1alpha2(n), p.ID); err != nil {
			t.Fatal(err)
		}
	}
	if got := p.IP(); got != ip {
		t.Errorf("its address was %s and is %s", ip, got)
	}
	if got := p.Output("ip -4 addr show eth0"); !strings.Contains(got, "inet "+ip+"/") {
		t.Errorf("its container has %q", got)
	}
}
