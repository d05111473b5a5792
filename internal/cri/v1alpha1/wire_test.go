package v1alpha1

import (
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	api "berth/api/runtime/v1alpha1"
)

var update = flag.Bool("update", false, "write testdata/wire.txt")

// fill sets every field, presence included, to what its number and name make of it.
func fill(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap():
			m.Mutable(f).Map().Set(protoreflect.ValueOfString("key").MapKey(), protoreflect.ValueOfString(string(f.Name())))
		case f.IsList() && f.Message() != nil:
			fill(m.Mutable(f).List().AppendMutable().Message())
		case f.IsList():
			m.Mutable(f).List().Append(scalar(f))
			m.Mutable(f).List().Append(scalar(f)) // not packed: this is proto2
		case f.Message() != nil:
			fill(m.Mutable(f).Message())
		default:
			m.Set(f, scalar(f))
		}
	}
}

func scalar(f protoreflect.FieldDescriptor) protoreflect.Value {
	n := int64(f.Number())
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(string(f.Name()))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(f.Name()))
	case protoreflect.EnumKind: // the last one
		values := f.Enum().Values()
		return protoreflect.ValueOfEnum(values.Get(values.Len() - 1).Number())
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(n) / 2)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(-int32(n))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(n) << 40)
	}
	return protoreflect.ValueOfInt64(-n)
}

// The bytes on the wire do not change: a client of 2016 reads them.
func TestTheWireOf2016(t *testing.T) {
	var b strings.Builder
	messages := api.File_runtime_v1alpha1_runtime_proto.Messages()
	for i := range messages.Len() {
		m := dynamicpb.NewMessage(messages.Get(i))
		fill(m)
		bytes, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s %s\n", m.Descriptor().FullName(), hex.EncodeToString(bytes))
	}
	services := api.File_runtime_v1alpha1_runtime_proto.Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			m := methods.Get(j)
			fmt.Fprintf(&b, "/%s/%s %s %s %v %v\n", m.Parent().FullName(), m.Name(), m.Input().Name(), m.Output().Name(),
				m.IsStreamingClient(), m.IsStreamingServer())
		}
	}
	file := filepath.Join("testdata", "wire.txt")
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
		t.Error("the bytes on the wire are not those of testdata/wire.txt")
	}
}

// Bytes that were written by hand after the document, and what they say.
func TestBytesOf2016AreUnderstood(t *testing.T) {
	config := &api.PodSandboxConfig{}
	// name = 1: "p"; port_mappings = 5: {protocol = 2: UDP, container_port = 3: 53}; resources = 6: {cpu = 1: {limits = 1:
	// 0.5}}; labels = 7: {"a": "b"}; linux = 9: {namespace_options = 2: {host_network = 1: true}}
	wire := "0a0170" + "2a04" + "10011835" + "320b" + "0a0909" + "000000000000e03f" + "3a06" + "0a0161" + "120162" +
		"4a04" + "1202" + "0801"
	raw, err := hex.DecodeString(wire)
	if err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(raw, config); err != nil {
		t.Fatal(err)
	}
	if config.GetName() != "p" || config.PortMappings[0].GetProtocol() != api.Protocol_UDP ||
		config.PortMappings[0].GetContainerPort() != 53 ||
		config.GetResources().GetCpu().GetLimits() != 0.5 || config.Labels["a"] != "b" ||
		!config.GetLinux().GetNamespaceOptions().GetHostNetwork() {
		t.Errorf("%v", config)
	}
	// A state of 0 that is set is on the wire.
	if got, err := proto.Marshal(&api.PodSandboxFilter{State: api.PodSandBoxState_READY.Enum()}); err != nil ||
		hex.EncodeToString(got) != "1800" {
		t.Errorf("%x, %v", got, err)
	}
	// additional_gids = 3 is not packed.
	if got, err := proto.Marshal(&api.LinuxUser{Uid: proto.Int64(0), AdditionalGids: []int64{1, 2}}); err != nil ||
		hex.EncodeToString(got) != "080018011802" {
		t.Errorf("%x, %v", got, err)
	}
}
