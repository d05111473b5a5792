package life

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

const (
	// mutators send requests at the same time.
	mutators = 4
	// callDeadline is what a call is given, callGrace what it may take beyond on a machine that does other things, and
	// waitDeadline what those are given that may well wait for somebody else: a name server, a program that does not end.
	callDeadline, callGrace, waitDeadline = 30 * time.Second, 20 * time.Second, time.Second
)

// TestMutatedRequestsNeitherBreakNorLeak sends requests that would be good but for a change or two, in their fields
// or in their bytes, for 20 s or BERTH_FUZZ_SECONDS, or until BERTH_FUZZ_REQUESTS were sent. No call may panic
// or outlive its deadline, and afterwards the daemon holds no more goroutines, descriptors or pods than before.
// BERTH_FUZZ_SEED repeats the changes, but for how the calls overlap.
func TestMutatedRequestsNeitherBreakNorLeak(t *testing.T) {
	nodetest.BerthOnly(t, "not ours to fuzz")
	number := func(name string, fallback int64) int64 {
		if n, err := strconv.ParseInt(os.Getenv(name), 10, 64); err == nil {
			return n
		}
		return fallback
	}
	seed := number("BERTH_FUZZ_SEED", time.Now().UnixNano())
	limit := number("BERTH_FUZZ_REQUESTS", 0)
	length := time.Duration(number("BERTH_FUZZ_SECONDS", 20)) * time.Second
	if limit > 0 && os.Getenv("BERTH_FUZZ_SECONDS") == "" {
		length = 24 * time.Hour
	}
	address := nodetest.FreeAddress(t)
	n := nodetest.Start(t, node.Options{
		// Host paths are mutated too, and may not be made.
		Config: "create_host_paths = []\n",
		// A checkpoint goes where the request says, and these are mutated.
		Tables: fmt.Sprintf("[metrics]\naddress = %q\n[checkpoint]\ncriu = \"/no/such/criu\"\n", address),
	})
	nodetest.Pull(t, n, node.Busybox)
	const sysctl = "/proc/sys/net/ipv4/ping_group_range"
	hostsOwn, err := os.ReadFile(sysctl)
	if err != nil {
		t.Fatal(err)
	}

	var total atomic.Int64
	run := func(length time.Duration, limit int64) map[codes.Code]int {
		end := time.Now().Add(length)
		all := map[codes.Code]int{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range mutators {
			wg.Go(func() {
				m := newMutator(t, n, seed+int64(i))
				defer m.leave()
				for time.Now().Before(end) && (limit == 0 || total.Load() < limit) && !t.Failed() {
					if m.step() {
						total.Add(1)
					}
				}
				mu.Lock()
				defer mu.Unlock()
				for code, count := range m.codes {
					all[code] += count
				}
			})
		}
		wg.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), node.Patience(time.Minute))
		defer cancel()
		if err := n.RemoveAll(ctx); err != nil {
			t.Errorf("remove the pods: %v\n%s", err, n.LogTail())
		}
		return all
	}
	pid := n.PID()
	run(min(length/10, time.Minute), 0) // what is made once and kept
	before := scrape(t, address)
	answers := run(length, limit)
	t.Logf("seed %d, %d requests, answers: %v", seed, total.Load(), answers)
	if n.PID() != pid {
		t.Fatalf("the daemon ended:\n%s", n.LogTail())
	}
	if answers[codes.OK] == 0 || answers[codes.InvalidArgument] == 0 {
		t.Error("the changes are too wild or too tame")
	}
	var after map[string]float64
	nodetest.Eventually(t, 15*time.Second, "goroutines and descriptors are as few as before", func() error {
		after = scrape(t, address)
		for name, more := range map[string]float64{"go_goroutines": 20, "process_open_fds": 10} {
			if after[name] > before[name]+more {
				return fmt.Errorf("%s is %v, and was %v", name, after[name], before[name])
			}
		}
		return nil
	})
	for _, name := range []string{"go_goroutines",
		"process_open_fds", "process_resident_memory_bytes", "go_memstats_heap_alloc_bytes"} {
		t.Logf("%s: %.0f, then %.0f", name, before[name], after[name])
	}
	if after["process_resident_memory_bytes"] > before["process_resident_memory_bytes"]+256<<20 {
		t.Error("the daemon has grown by more than 256 MiB")
	}
	log, err := os.ReadFile(n.DaemonLog)
	if err != nil {
		t.Fatal(err)
	}
	if i := strings.Index(string(log), "panic"); i >= 0 {
		t.Errorf("the log tells of a panic: %.4000s", log[i:])
	}
	if now, err := os.ReadFile(sysctl); err != nil || string(now) != string(hostsOwn) {
		t.Errorf("the node's own %s is %q, and was %q (%v)", sysctl, now, hostsOwn, err)
	}
	nodetest.RunPod(t, n).Run().Sh("true")
}

// scrape is the daemon's metrics without labels.
func scrape(t testing.TB, address string) map[string]float64 {
	t.Helper()
	r, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	out := map[string]float64{}
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		name, text, _ := strings.Cut(lines.Text(), " ")
		if v, err := strconv.ParseFloat(text, 64); err == nil {
			out[name] = v
		}
	}
	return out
}

// mutator sends changed requests on a connection of its own, about a pod of its own.
type mutator struct {
	t         testing.TB
	n         *node.Node
	fuzz      *fuzzer
	conn      *grpc.ClientConn
	runtime   cri.RuntimeServiceClient
	dir       string
	name      string
	serial    int
	pod       string
	container string
	methods   []protoreflect.MethodDescriptor
	codes     map[codes.Code]int
}

func newMutator(t testing.TB, n *node.Node, seed int64) *mutator {
	m := &mutator{t: t, n: n, conn: n.Conn, runtime: n.Runtime, codes: map[codes.Code]int{},
		name: fmt.Sprintf("m%x", uint32(seed)), dir: filepath.Join(n.Dir, "volume")}
	m.fuzz = &fuzzer{r: rand.New(rand.NewSource(seed)), words: []string{
		"", "x", "/", "..", "../../../../etc", "/no/such/path", "/dev/null", node.Busybox, "sleep", "a\x00b", "localhost/x",
		strings.Repeat("long", 20000), "ünï\ncode", "%s%n", "sha256:" + strings.Repeat("0", 64), "-1", "ALL", "0-3", "=",
	}, safe: map[protoreflect.Name]string{
		// Chance may not choose where on the machine logs and cgroups are made, nor which addresses are ours.
		"log_directory": n.LogDir, "cgroup_parent": n.PodCgroup("fuzz"), "host_ip": "127.77.0.1",
		"pod_cidr": n.PodCIDR.String(),
	}}
	if err := os.MkdirAll(m.dir, 0o711); err != nil {
		t.Error(err)
	}
	services := cri.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto.Services()
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			m.methods = append(m.methods, services.Get(i).Methods().Get(j))
		}
	}
	return m
}

// leave removes the mutator's pod.
func (m *mutator) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if m.pod != "" {
		_, _ = m.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: m.pod}) // RemoveAll tells
	}
}

// settle sees to it that requests have a pod and a running container to be about.
func (m *mutator) settle() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if m.container != "" {
		s, err := m.runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: m.container})
		if err == nil && s.Status.State == cri.ContainerState_CONTAINER_RUNNING {
			return
		}
	}
	m.leave()
	m.pod, m.container = "", ""
	m.serial++
	config := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: m.name, Namespace: "settled", Uid: fmt.Sprint(m.serial)},
		Linux:    &cri.LinuxPodSandboxConfig{CgroupParent: m.fuzz.safe["cgroup_parent"]},
	}
	r, err := m.runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		m.t.Errorf("a good pod: %v", err)
		return
	}
	m.pod = r.PodSandboxId
	c, err := m.runtime.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: m.pod, Config: &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "main"}, Image: &cri.ImageSpec{Image: node.Busybox},
		Command: []string{"sleep", "3600"},
	}})
	if err == nil {
		_, err = m.runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ContainerId})
	}
	if err != nil {
		if status.Code(err) != codes.NotFound { // another mutator has removed the image, or this pod
			m.t.Errorf("a good container: %v", err)
		}
		_, _ = m.n.Images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: node.Busybox}})
		return
	}
	m.container = c.ContainerId
}

// good is a request that nothing is wrong with.
func (m *mutator) good(d protoreflect.MethodDescriptor) proto.Message {
	pod, container := m.pod, m.container
	sandbox := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: m.name, Namespace: "fuzz", Uid: fmt.Sprint(m.fuzz.r.Intn(20))},
		Hostname:     "host",
		LogDirectory: m.n.LogDir,
		DnsConfig:    &cri.DNSConfig{Servers: []string{"10.0.0.10"}, Options: []string{"ndots:5"}},
		Labels:       map[string]string{"a": "b"},
		Annotations:  map[string]string{"a": "b"},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: m.n.PodCgroup("fuzz"),
			Sysctls:      map[string]string{"net.ipv4.ping_group_range": "0 100"},
			Resources:    &cri.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 50000, MemoryLimitInBytes: 64 << 20},
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER},
				Seccomp:          &cri.SecurityProfile{},
			},
		},
	}
	image := &cri.ImageSpec{Image: node.Busybox}
	switch d.Name() {
	case "RunPodSandbox":
		return &cri.RunPodSandboxRequest{Config: sandbox}
	case "CreateContainer":
		return &cri.CreateContainerRequest{PodSandboxId: pod, SandboxConfig: sandbox, Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: fmt.Sprint(m.fuzz.r.Intn(10))},
			Image:    image, Command: []string{"sleep"}, Args: []string{"3600"}, WorkingDir: "/tmp",
			Envs:    []*cri.KeyValue{{Key: "A", Value: []byte("b")}},
			Mounts:  []*cri.Mount{{ContainerPath: "/data", HostPath: m.dir}},
			Devices: []*cri.Device{{ContainerPath: "/dev/x", HostPath: "/dev/null", Permissions: "rw"}},
			LogPath: m.name + ".log", StopSignal: cri.Signal_SIGNAL_SIGUSR1,
			Linux: &cri.LinuxContainerConfig{
				Resources: &cri.LinuxContainerResources{CpuShares: 100, MemoryLimitInBytes: 32 << 20, OomScoreAdj: 900},
				SecurityContext: &cri.LinuxContainerSecurityContext{
					Capabilities:       &cri.Capability{AddCapabilities: []string{"NET_ADMIN"}, DropCapabilities: []string{"MKNOD"}},
					NamespaceOptions:   &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER},
					RunAsUser:          &cri.Int64Value{Value: 1000},
					SupplementalGroups: []int64{7}, MaskedPaths: []string{"/proc/kcore"}, Seccomp: &cri.SecurityProfile{},
				},
			},
		}}
	case "ExecSync":
		return &cri.ExecSyncRequest{ContainerId: container, Cmd: []string{"true"}, Timeout: 1}
	case "Exec":
		return &cri.ExecRequest{ContainerId: container, Cmd: []string{"true"}, Stdout: true}
	case "Attach":
		return &cri.AttachRequest{ContainerId: container, Stdout: true}
	case "UpdateContainerResources":
		return &cri.UpdateContainerResourcesRequest{ContainerId: container,
			Linux: &cri.LinuxContainerResources{CpuShares: 50}}
	case "UpdatePodSandboxResources":
		return &cri.UpdatePodSandboxResourcesRequest{PodSandboxId: pod,
			Resources: &cri.LinuxContainerResources{CpuShares: 50}}
	case "PullImage":
		return &cri.PullImageRequest{Image: image, Auth: &cri.AuthConfig{Username: "u", Password: "p"}}
	case "ImageStatus":
		return &cri.ImageStatusRequest{Image: image, Verbose: true}
	case "RemoveImage":
		return &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: "x"}}
	case "CheckpointContainer":
		return &cri.CheckpointContainerRequest{ContainerId: container, Location: filepath.Join(m.n.Dir, "checkpoint")}
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.Input().FullName())
	if err != nil {
		m.t.Error(err)
		return nil
	}
	request := kind.New()
	fields := request.Descriptor().Fields()
	for i := range fields.Len() {
		switch f := fields.Get(i); f.Name() {
		case "pod_sandbox_id":
			request.Set(f, protoreflect.ValueOfString(pod))
		case "container_id":
			request.Set(f, protoreflect.ValueOfString(container))
		case "filter":
			request.Mutable(f)
		}
	}
	return request.Interface()
}

// change spoils one thing in a message.
func (m *mutator) change(top protoreflect.Message) {
	at := top
	for m.fuzz.r.Intn(4) > 0 { // somewhere below
		var inner []protoreflect.Message
		at.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			switch {
			case f.Message() == nil || f.IsMap():
			case f.IsList():
				for i := range v.List().Len() {
					inner = append(inner, v.List().Get(i).Message())
				}
			default:
				inner = append(inner, v.Message())
			}
			return true
		})
		if len(inner) == 0 {
			break
		}
		at = inner[m.fuzz.r.Intn(len(inner))]
	}
	fields := at.Descriptor().Fields()
	if fields.Len() == 0 {
		return
	}
	f := fields.Get(m.fuzz.r.Intn(fields.Len()))
	switch {
	case m.fuzz.r.Intn(6) == 0:
		at.Clear(f)
	case f.IsMap():
		if f.MapValue().Message() == nil {
			at.Mutable(f).Map().Set(m.fuzz.scalar(f.MapKey()).MapKey(), m.fuzz.scalar(f.MapValue()))
		}
	case f.IsList() && f.Message() == nil:
		at.Mutable(f).List().Append(m.fuzz.scalar(f))
	case f.IsList():
		m.fuzz.fill(at.Mutable(f).List().AppendMutable().Message(), 3)
	case f.Message() != nil:
		m.fuzz.fill(at.Mutable(f).Message(), 3)
	default:
		at.Set(f, m.fuzz.scalar(f))
	}
	if m.fuzz.r.Intn(8) == 0 { // a field of a later version
		at.SetUnknown(protoreflect.RawFields{0xc0, 0x3e, byte(m.fuzz.r.Intn(128))})
	}
}

// tame gives back to fields what chance may not choose.
func (m *mutator) tame(at protoreflect.Message) {
	at.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if text, ok := m.fuzz.safe[f.Name()]; ok && v.String() != "" {
			at.Set(f, protoreflect.ValueOfString(text))
		}
		switch {
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				m.tame(v.List().Get(i).Message())
			}
		default:
			m.tame(v.Message())
		}
		return true
	})
	if p, ok := at.Interface().(*cri.PortMapping); ok && p.HostIp == "" {
		p.HostIp = m.fuzz.safe["host_ip"] // no port of the machine's own addresses
	}
}

// garble changes bytes of a request on the wire.
func (m *mutator) garble(wire []byte) []byte {
	for range 1 + m.fuzz.r.Intn(3) {
		if len(wire) == 0 {
			return []byte{byte(m.fuzz.r.Intn(256))}
		}
		i := m.fuzz.r.Intn(len(wire))
		switch m.fuzz.r.Intn(4) {
		case 0:
			wire[i] ^= 1 << m.fuzz.r.Intn(8)
		case 1:
			wire = append(wire[:i], wire[i+1:]...)
		case 2:
			wire = append(wire[:i], append([]byte{byte(m.fuzz.r.Intn(256))}, wire[i:]...)...)
		case 3:
			wire = wire[:i]
		}
	}
	return wire
}

// rawCodec sends bytes as they are.
type rawCodec struct{ encoding.CodecV2 }

func (c rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.([]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// step sends one request, unless chance made one that no client could send.
func (m *mutator) step() bool {
	m.serial++
	if m.serial%25 == 0 || m.container == "" {
		m.settle()
	}
	d := m.methods[m.fuzz.r.Intn(len(m.methods))]
	request := m.good(d)
	for range m.fuzz.r.Intn(3) {
		m.change(request.ProtoReflect())
	}
	m.tame(request.ProtoReflect())
	wire, err := proto.Marshal(request)
	if err != nil {
		return false // not UTF-8
	}
	if m.fuzz.r.Intn(3) == 0 {
		wire = m.garble(wire)
		// What still is a request must not reach the machine either.
		if again := request.ProtoReflect().New(); proto.Unmarshal(wire, again.Interface()) == nil {
			m.tame(again)
			if wire, err = proto.Marshal(again.Interface()); err != nil {
				return false
			}
		}
	}
	m.send(d, request, wire)
	return true
}

func (m *mutator) send(d protoreflect.MethodDescriptor, request proto.Message, wire []byte) {
	deadline, waits := callDeadline, false
	switch d.Name() {
	case "GetContainerEvents":
		deadline, waits = 20*time.Millisecond, true // it ends with its reader
	case "PullImage", "StopContainer", "ExecSync":
		deadline, waits = waitDeadline, true
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	name := fmt.Sprintf("/%s/%s", d.Parent().FullName(), d.Name())
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.Output().FullName())
	if err != nil {
		m.t.Error(err)
		return
	}
	begin := time.Now()
	codec := grpc.ForceCodecV2(rawCodec{encoding.GetCodecV2("proto")})
	if d.IsStreamingServer() {
		var s grpc.ClientStream
		if s, err = m.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, name, codec); err == nil {
			if err = s.SendMsg(wire); err == nil {
				err = s.CloseSend()
			}
			for err == nil {
				err = s.RecvMsg(kind.New().Interface())
			}
			if errors.Is(err, io.EOF) {
				err = nil
			}
		}
	} else {
		answer := kind.New().Interface()
		if err = m.conn.Invoke(ctx, name, wire, answer, codec); err == nil {
			m.clean(answer)
		}
	}
	took := time.Since(begin)
	code := status.Code(err)
	m.codes[code]++
	switch {
	case took > deadline+callGrace:
		m.t.Errorf("%s took %v: %v", d.Name(), took, request)
	case (code == codes.Unavailable || code == codes.Unknown) && d.Name() != "PullImage", code == codes.DataLoss:
		m.t.Errorf("%s: %v: %v", d.Name(), err, request)
	case code == codes.Internal && strings.Contains(err.Error(), "an error in berthd itself"):
		m.t.Errorf("%s: %v: %v", d.Name(), err, request)
	case code == codes.Internal && !strings.Contains(err.Error(), "unmarshal"):
		// bytes that are no message never get further
		m.t.Logf("without a better code: %s: %v", d.Name(), err)
	case code == codes.DeadlineExceeded && !waits:
		m.t.Errorf("%s hangs: %v", d.Name(), request)
	}
}

// clean removes what a request has made, so that a million of them fit a machine.
func (m *mutator) clean(answer proto.Message) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var err error
	switch a := answer.(type) {
	case *cri.RunPodSandboxResponse:
		_, err = m.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: a.PodSandboxId})
	case *cri.CreateContainerResponse:
		if m.fuzz.r.Intn(2) == 0 {
			_, startErr := m.runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: a.ContainerId})
			m.codes[status.Code(startErr)]++
		}
		_, err = m.runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: a.ContainerId})
	}
	if err != nil {
		m.t.Errorf("%T cannot be removed: %v", answer, err)
	}
}
