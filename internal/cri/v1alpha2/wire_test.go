package v1alpha2

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"berth/api/pouch"
	criv1 "berth/internal/cri/v1"
)

var update = flag.Bool("update", false, "write testdata/pouch.txt")

// serviceInfo is what the API registers.
func serviceInfo() map[string]grpc.ServiceInfo {
	server := grpc.NewServer()
	Register(server, criv1.Deps{}, nil, volumes{})
	return server.GetServiceInfo()
}

func has(info map[string]grpc.ServiceInfo, method string) bool {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	for _, m := range info[service].Methods {
		if m.Name == name {
			return true
		}
	}
	return false
}

// What Kubernetes 1.25 writes, v1's messages read, every field under its own name, and write again byte by byte.
func TestV1ReadsAndWritesTheBytesOfKubernetes125(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "kubernetes-1.25.txt"))
	if err != nil {
		t.Fatal(err)
	}
	info, messages, methods := serviceInfo(), 0, 0
	for line := range strings.Lines(string(data)) {
		words := strings.Split(strings.TrimSuffix(line, "\n"), " ")
		if strings.HasPrefix(words[0], "/") {
			methods++
			if !has(info, words[0]) {
				t.Errorf("there is no %s", words[0])
			}
			continue
		}
		messages++
		name := strings.Replace(words[0], ".v1alpha2.", ".v1.", 1)
		kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		wire, err := hex.DecodeString(words[1])
		if err != nil {
			t.Fatal(err)
		}
		m := kind.New()
		if err := proto.Unmarshal(wire, m.Interface()); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		understood(t, name, m)
		again, err := proto.MarshalOptions{Deterministic: true}.Marshal(m.Interface())
		if err != nil || !bytes.Equal(again, wire) {
			t.Errorf("%s becomes %x, %v; it was %x", name, again, err, wire)
		}
	}
	if messages < 100 || methods < 29 {
		t.Errorf("the golden file has %d messages and %d calls", messages, methods)
	}
}

// understood checks that each field holds what the writer put under its name and number.
func understood(t *testing.T, at string, m protoreflect.Message) {
	t.Helper()
	if unknown := m.GetUnknown(); len(unknown) > 0 {
		t.Errorf("%s has unknown fields: %x", at, unknown)
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := at + "." + string(f.Name())
		switch {
		case f.IsMap():
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				holds(t, at, f.MapValue(), f, v)
				return true
			})
		case f.IsList():
			for i := range v.List().Len() {
				holds(t, at, f, f, v.List().Get(i))
			}
		default:
			holds(t, at, f, f, v)
		}
		return true
	})
}

func holds(t *testing.T, at string, kind, field protoreflect.FieldDescriptor, v protoreflect.Value) {
	t.Helper()
	n := uint64(field.Number())
	ok := true
	switch kind.Kind() {
	case protoreflect.MessageKind:
		understood(t, at, v.Message())
	case protoreflect.StringKind:
		ok = v.String() == string(field.Name())
	case protoreflect.BytesKind:
		ok = string(v.Bytes()) == string(field.Name())
	case protoreflect.Int32Kind:
		ok = uint64(v.Int()) == n
	case protoreflect.Int64Kind:
		ok = uint64(v.Int()) == n<<33
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		ok = v.Uint() == n
	case protoreflect.EnumKind:
		ok = v.Enum() == 1
	}
	if !ok {
		t.Errorf("%s holds %v", at, v)
	}
}

// fill sets every field to what its name and number make of it.
func fill(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap() && f.MapValue().Message() != nil:
			m.Mutable(f).Map().Mutable(protoreflect.ValueOfString("key").MapKey())
		case f.IsMap():
			m.Mutable(f).Map().Set(protoreflect.ValueOfString("key").MapKey(), protoreflect.ValueOfString(string(f.Name())))
		case f.IsList():
			fill(m.Mutable(f).List().AppendMutable().Message())
		case f.Message() != nil:
			fill(m.Mutable(f).Message())
		default:
			m.Set(f, scalar(f))
		}
	}
}

func scalar(f protoreflect.FieldDescriptor) protoreflect.Value {
	n := uint64(f.Number())
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(string(f.Name()))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(f.Name()))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(n << 33)
	}
	return protoreflect.ValueOfInt64(-int64(n))
}

// The bytes of PouchContainer's fields do not change: its clients read and write them.
func TestTheWireOfPouchContainer(t *testing.T) {
	var b strings.Builder
	messages := pouch.File_pouch_proto.Messages()
	for i := range messages.Len() {
		m := dynamicpb.NewMessage(messages.Get(i))
		fill(m)
		fmt.Fprintf(&b, "%s %x\n", m.Descriptor().FullName(), marshal(m))
	}
	info := serviceInfo()
	services := pouch.File_pouch_proto.Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			m := methods.Get(j)
			name := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
			if !has(info, name) {
				t.Errorf("there is no %s", name)
			}
			fmt.Fprintf(&b, "%s %s %s\n", name, m.Input().Name(), m.Output().Name())
		}
	}
	file := filepath.Join("testdata", "pouch.txt")
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("the bytes on the wire are not those of %s", file)
	}
}

// Bytes that were written by hand after the table of the fields' numbers, and what they say.
func TestBytesOfPouchContainerAreUnderstood(t *testing.T) {
	for _, tc := range []struct {
		wire string
		want proto.Message
	}{
		{"a206" + "0164", &pouch.Mount{Name: "d"}},
		{"a206" + "06" + "0a012f" + "120131" + "a806" + "2c",
			&pouch.LinuxContainerResources{DiskQuota: map[string]string{"/": "1"}, BlkioWeight: 44}},
		{"b206" + "05" + "0a0161" + "1007",
			&pouch.LinuxContainerResources{BlkioWeightDevice: []*pouch.WeightDevice{{Path: "a", Weight: 7}}}},
		{"ba06" + "02" + "1001" + "c206" + "02" + "1002" + "ca06" + "02" + "1003" + "d206" + "02" + "1004",
			&pouch.LinuxContainerResources{
				BlkioDeviceReadBps:   []*pouch.ThrottleDevice{{Rate: 1}},
				BlkioDeviceWriteBps:  []*pouch.ThrottleDevice{{Rate: 2}},
				BlkioDeviceRead_IOps: []*pouch.ThrottleDevice{{Rate: 3}}, BlkioDeviceWrite_IOps: []*pouch.ThrottleDevice{{Rate: 4}},
			}},
		{"d806" + "05" + "e006" + "06" + "ea06" + "02" + "0807", &pouch.LinuxContainerResources{
			KernelMemory: 5, MemoryReservation: 6, MemorySwappiness: &pouch.Int64Value{Value: 7},
		}},
		{"f206" + "07" + "0a0163" + "1002" + "1801",
			&pouch.LinuxContainerResources{Ulimits: []*pouch.Ulimit{{Name: "c", Hard: 2, Soft: 1}}}},
		{"a006" + "05" + "aa06" + "022d31", &pouch.ContainerConfig{NetPriority: 5, QuotaId: "-1"}},
		{"a206" + "05" + "0a012f" + "1200" + "aa06" + "02" + "0801" + "b206" + "0139" + "ba06" + "06" + "0a0161" + "120162",
			&pouch.ContainerStatus{
				Volumes: map[string]*pouch.Volume{"/": {}}, Resources: []byte{8, 1}, QuotaId: "9",
				Envs: []*pouch.KeyValue{{Key: "a", Value: []byte("b")}},
			}},
		{"a206" + "05" + "0a012f" + "1200", &pouch.Image{Volumes: map[string]*pouch.Volume{"/": {}}}},
		{"a206" + "06" + "0a0161" + "120162", &pouch.ImageSpec{SpecAnnotations: map[string]string{"a": "b"}}},
		{"0a0164", &pouch.RemoveVolumeRequest{VolumeName: "d"}},
		{"0a0164", &pouch.StartPodSandboxRequest{PodSandboxId: "d"}},
		{"0a0164", &pouch.PauseContainerRequest{ContainerId: "d"}},
		{"0a0164", &pouch.UnpauseContainerRequest{ContainerId: "d"}},
	} {
		wire, err := hex.DecodeString(tc.wire)
		if err != nil {
			t.Fatal(err)
		}
		got := tc.want.ProtoReflect().New().Interface()
		if err := proto.Unmarshal(wire, got); err != nil || !proto.Equal(got, tc.want) {
			t.Errorf("%s says %v, %v; want %v", tc.wire, got, err, tc.want)
		}
		if again := marshal(tc.want); !bytes.Equal(again, wire) {
			t.Errorf("%v becomes %x, want %s", tc.want, []byte(again), tc.wire)
		}
	}
}
