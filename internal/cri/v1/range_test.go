//lint:file-ignore SA1019 deprecated fields are in range too

package v1

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// outside are values of numeric fields that are out of range, by message and field.
var outside = map[string][]int64{
	"PortMapping.container_port":                         {0, -1, 65536, -1 << 31, 1<<31 - 1},
	"PortMapping.host_port":                              {-1, 65536, -1 << 31, 1<<31 - 1},
	"PortForwardRequest.port":                            {0, -1, 65536, -1 << 31, 1<<31 - 1},
	"LinuxContainerResources.cpu_period":                 {-1, 1, 999, 1000001, 1<<63 - 1, -1 << 63},
	"LinuxContainerResources.cpu_quota":                  {-2, 1, 999, -1 << 63},
	"LinuxContainerResources.cpu_shares":                 {-1, 1, 262145, 1<<63 - 1, -1 << 63},
	"LinuxContainerResources.memory_limit_in_bytes":      {-2, -1 << 63},
	"LinuxContainerResources.memory_swap_limit_in_bytes": {-2, -1 << 63},
	"LinuxContainerResources.oom_score_adj":              {-1001, 1001, 1<<63 - 1, -1 << 63},
	"Int64Value.value":                                   {-1, 1 << 31, 1<<32 - 1, 1 << 32, 1<<63 - 1, -1 << 63},
	"LinuxSandboxSecurityContext.supplemental_groups":    {-1, 1 << 31, 1<<32 - 1, 1 << 32, -1 << 63},
	"LinuxContainerSecurityContext.supplemental_groups":  {-1, 1 << 31, 1<<32 - 1, 1 << 32, -1 << 63},
	"StopContainerRequest.timeout":                       {-1, -1 << 63},
	"ExecSyncRequest.timeout":                            {-1, -1 << 63},
	"CheckpointContainerRequest.timeout":                 {-1, -1 << 63},
	"IDMapping.length":                                   {0, 1<<32 - 1}, // of mappings that begin above 0
	"IDMapping.host_id":                                  {1<<32 - 1},    // with a length above 1
	"IDMapping.container_id":                             {1<<32 - 1},
}

// whole are numeric fields of which every value is one.
var whole = map[string]string{
	"PodSandboxMetadata.attempt": "any attempt",
	"ContainerMetadata.attempt":  "any attempt",
	"HugepageLimit.limit":        "any number of bytes; the kernel has an end of its own",
}

// subtracted are numbers of UpdatePodSandboxResources that a kubelet makes by a subtraction: see withoutOverhead.
var subtracted = []string{"resources.cpu_quota", "resources.memory_limit_in_bytes"}

// full is a good request with every field set on the way to numbers and enums.
func full(t *testing.T, m protoreflect.MethodDescriptor) proto.Message {
	t.Helper()
	req := newMessage(t, m.Input())
	switch r := req.(type) {
	case *api.RunPodSandboxRequest:
		r.Config = fullSandbox()
	case *api.CreateContainerRequest:
		c := containerRequest()
		security := c.Config.Linux.SecurityContext
		security.RunAsUsername, security.RunAsUser = "", &api.Int64Value{Value: 5}
		security.NamespaceOptions.UsernsOptions = fullSandbox().Linux.SecurityContext.NamespaceOptions.UsernsOptions
		security.Seccomp = &api.SecurityProfile{}
		security.Apparmor = &api.SecurityProfile{}
		c.Config.Mounts[0].GidMappings = []*api.IDMapping{{HostId: 1, ContainerId: 2, Length: 3}}
		c.SandboxConfig = fullSandbox()
		return c
	default:
		fill(req.ProtoReflect(), 4)
		switch r := req.(type) {
		case *api.UpdateContainerResourcesRequest:
			r.Linux, r.Windows = containerRequest().Config.Linux.Resources, nil
		case *api.UpdatePodSandboxResourcesRequest:
			r.Overhead, r.Resources = containerRequest().Config.Linux.Resources, containerRequest().Config.Linux.Resources
		case *api.PullImageRequest:
			r.SandboxConfig = fullSandbox()
		case *api.ExecRequest:
			r.Tty = false
		case *api.AttachRequest:
			r.Tty = false
		case *api.CheckpointPodRequest:
			r.OutputPath, r.Options = "/a", nil
		case *api.RestorePodRequest:
			r.CheckpointPath, r.Options, r.Config = "/a", nil, fullSandbox()
			create := full(t, m.Parent().(protoreflect.ServiceDescriptor).Methods().ByName("CreateContainer"))
			r.ContainerConfigs = []*api.ContainerConfig{create.(*api.CreateContainerRequest).Config}
		case *api.UpdateRuntimeConfigRequest:
			r.RuntimeConfig.NetworkConfig.PodCidr = "10.0.0.0/24"
		}
	}
	return req
}

func fullSandbox() *api.PodSandboxConfig {
	c := sandboxRequest().Config
	c.Linux.Overhead = containerRequest().Config.Linux.Resources
	c.Linux.Resources = containerRequest().Config.Linux.Resources
	c.Linux.SecurityContext.NamespaceOptions.UsernsOptions.Uids[0].ContainerId = 1
	c.Linux.SecurityContext.NamespaceOptions.UsernsOptions.Gids[0].ContainerId = 1
	return c
}

// fill sets every field to something plain.
func fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap():
			m.Mutable(f).Map().Set(protoreflect.ValueOfString("a").MapKey(), protoreflect.ValueOfString("b"))
		case f.IsList() && f.Message() == nil:
			m.Mutable(f).List().Append(plain(f))
		case f.IsList():
			fill(m.Mutable(f).List().AppendMutable().Message(), depth-1)
		case f.Message() != nil:
			if depth > 0 {
				fill(m.Mutable(f).Message(), depth-1)
			}
		default:
			m.Set(f, plain(f))
		}
	}
}

func plain(f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("a")
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte("a"))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(0)
	}
	return numeric(f, 1)
}

// numeric is a number in a field's type; what does not fit comes out as something else.
func numeric(f protoreflect.FieldDescriptor, n int64) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(n))
	}
	return protoreflect.ValueOfInt64(n)
}

// place is a number or an enum somewhere in a request.
type place struct {
	path  string // as an error names it
	field protoreflect.FieldDescriptor
	set   func(protoreflect.Value)
}

func places(at path, m protoreflect.Message) (out []place) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		here := at.Field(string(f.Name()))
		switch {
		case f.IsMap(): // maps of this interface hold strings alone
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				out = append(out, places(here.At(i), v.List().Get(i).Message())...)
			}
		case f.Message() != nil:
			if strings.HasPrefix(string(f.Message().Name()), "Windows") {
				return true
			}
			out = append(out, places(here, v.Message())...)
		}
		return true
	})
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch f.Kind() {
		case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.BoolKind, protoreflect.MessageKind:
			continue
		}
		here := at.Field(string(f.Name()))
		if f.IsList() {
			out = append(out, place{string(here.At(0)), f, func(v protoreflect.Value) {
				m.Clear(f)
				m.Mutable(f).List().Append(v)
			}})
			continue
		}
		out = append(out, place{string(here), f, func(v protoreflect.Value) { m.Set(f, v) }})
	}
	slices.SortFunc(out, func(a, b place) int { return strings.Compare(a.path, b.path) }) // Range has no order
	return out
}

// name is how an error may name a place: a number that stands for itself (Int64Value) is named by the field
// that has it.
func (p place) named(err error) bool {
	text := err.Error()
	if strings.Contains(text, p.path+":") || strings.Contains(text, p.path+" ") {
		return true
	}
	outer := p.path[:max(strings.LastIndexByte(p.path, '.'), 0)]
	single := p.field.Parent().(protoreflect.MessageDescriptor).Fields().Len() == 1
	mapping := p.field.Parent().Name() == "IDMapping" // begin and length are wrong together
	return (single || mapping) && outer != "" && strings.Contains(text, outer+":")
}

// first is how a stream begins.
func first(t *testing.T, d *fixture, m protoreflect.MethodDescriptor, name string, req proto.Message) error {
	t.Helper()
	s, err := d.conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, name)
	if err != nil {
		return err
	}
	if err := s.SendMsg(req); err != nil {
		return err
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	return s.RecvMsg(newMessage(t, m.Output()))
}

func TestNumbersAndEnumsOutOfRangeAreRefusedByPath(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: run without -short")
	}
	d := populated(t)
	seen := map[string]bool{}
	tried := 0
	for _, m := range methods(t) {
		call := func(req proto.Message) error {
			name := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
			if !m.IsStreamingServer() {
				return d.conn.Invoke(t.Context(), name, req, newMessage(t, m.Output()))
			}
			return first(t, d, m, name, req)
		}
		count := len(places("", full(t, m).ProtoReflect()))
		for i := range count {
			kind := places("", full(t, m).ProtoReflect())[i].field
			key := string(kind.Parent().Name()) + "." + string(kind.Name())
			seen[key] = true
			var values []protoreflect.Value
			if kind.Enum() != nil {
				for _, n := range []int32{-1, 9999, 1<<31 - 1, -1 << 31} {
					values = append(values, protoreflect.ValueOfEnum(protoreflect.EnumNumber(n)))
				}
			} else {
				if len(outside[key]) == 0 && whole[key] == "" {
					t.Errorf("nobody knows the range of %s", key)
				}
				for _, n := range outside[key] {
					values = append(values, numeric(kind, n))
				}
			}
			for _, v := range values {
				req := full(t, m)
				p := places("", req.ProtoReflect())[i]
				p.set(v)
				err := call(req)
				if m.Name() == "UpdatePodSandboxResources" && slices.Contains(subtracted, p.path) {
					if err != nil {
						t.Errorf("%s with %s = %v: %v", m.Name(), p.path, v, err)
					}
					continue
				}
				if code := status.Code(err); code != codes.InvalidArgument || !p.named(err) {
					t.Errorf("%s with %s = %v: %v", m.Name(), p.path, v, err)
				}
				tried++
			}
		}
	}
	for key := range outside {
		if !seen[key] {
			t.Errorf("no request has %s", key)
		}
	}
	t.Logf("%d requests", tried)
	if _, err := d.UpdateContainerResources(t.Context(), &api.UpdateContainerResourcesRequest{ContainerId: "c",
		Linux:   &api.LinuxContainerResources{},
		Windows: &api.WindowsContainerResources{}}); status.Code(err) != codes.InvalidArgument ||
		!strings.Contains(fmt.Sprint(err), "windows: this node runs Linux") {
		t.Errorf("something about Windows: %v", err)
	}
}

// The interface has no oneof today; the day it has one, its rule needs a test.
func TestNoRequestHasAOneof(t *testing.T) {
	seen := map[protoreflect.FullName]bool{}
	var visit func(protoreflect.MessageDescriptor)
	visit = func(m protoreflect.MessageDescriptor) {
		if seen[m.FullName()] {
			return
		}
		seen[m.FullName()] = true
		if m.Oneofs().Len() > 0 {
			t.Errorf("%s has a oneof", m.Name())
		}
		for i := range m.Fields().Len() {
			if inner := m.Fields().Get(i).Message(); inner != nil {
				visit(inner)
			}
		}
	}
	for _, m := range methods(t) {
		visit(m.Input())
	}
}

func TestGoodRequestsPass(t *testing.T) {
	d := open(t, slog.LevelError)
	for _, m := range methods(t) {
		switch m.Name() {
		case "RunPodSandbox", "CreateContainer", "UpdateContainerResources", "UpdatePodSandboxResources",
			"PullImage", "ExecSync":
			name := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
			if err := d.conn.Invoke(t.Context(), name, full(t, m), newMessage(t, m.Output())); err != nil {
				t.Errorf("%s: %v", m.Name(), err)
			}
		}
	}
}
