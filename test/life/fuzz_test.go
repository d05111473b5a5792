package life

import (
	"context"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// TestNoRequestEndsTheNode sends requests of every kind with empty, absurd and hostile fields, for 5 s or for
// BERTH_FUZZ_SECONDS. The seed is printed; BERTH_FUZZ_SEED repeats it.
func TestNoRequestEndsTheNode(t *testing.T) {
	nodetest.BerthOnly(t, "not ours to fuzz")
	// Chance may not choose which directories are made on the machine either.
	n := nodetest.Start(t, node.Options{Config: "create_host_paths = []\n"})
	p := nodetest.RunPod(t, n)
	c := p.Run()

	seed, seconds := time.Now().UnixNano(), 5
	if text := os.Getenv("BERTH_FUZZ_SEED"); text != "" {
		seed, _ = strconv.ParseInt(text, 10, 64)
	}
	if text := os.Getenv("BERTH_FUZZ_SECONDS"); text != "" {
		seconds, _ = strconv.Atoi(text)
	}
	t.Logf("seed %d", seed)
	f := &fuzzer{r: rand.New(rand.NewSource(seed)), words: []string{
		p.ID, c.ID, p.ID[:8], "", "x", "/", "..", "../../../../etc", "/no/such/path", node.Busybox, "sleep", "a\x00b",
		strings.Repeat("long", 20000), "ünï\ncode", "%s%n", "sha256:" + strings.Repeat("0", 64), "-1", "ALL",
	}, safe: map[protoreflect.Name]string{
		// Chance may not choose where on the machine logs and cgroups are made.
		"log_directory": n.LogDir, "cgroup_parent": n.PodCgroup("fuzz"),
	}}
	services := cri.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto.Services()
	var methods []protoreflect.MethodDescriptor
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			if m := services.Get(i).Methods().Get(j); !m.IsStreamingServer() {
				methods = append(methods, m)
			}
		}
	}
	pid, calls := n.PID(), map[codes.Code]int{}
	one := func(m protoreflect.MethodDescriptor, request proto.Message) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), node.Lapse(3*time.Second))
		defer cancel()
		path := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
		err := n.Conn.Invoke(ctx, path, request, dynamicpb.NewMessage(m.Output()))
		calls[status.Code(err)]++
		if n.PID() != pid {
			t.Fatalf("the daemon ended at %s %v: %v\n%s", path, request, err, n.LogTail())
		}
		if err != nil && (strings.Contains(err.Error(), "panic") || strings.Contains(err.Error(), "nil pointer")) {
			t.Errorf("%s %v: %v", path, request, err)
		}
	}
	for _, m := range methods {
		one(m, dynamicpb.NewMessage(m.Input())) // empty
	}
	for deadline := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(deadline); {
		m := methods[f.r.Intn(len(methods))]
		request := dynamicpb.NewMessage(m.Input())
		f.fill(request, 0)
		one(m, request)
	}
	t.Logf("answers: %v", calls)
	if pods, err := n.Runtime.ListPodSandbox(nodetest.Context(t), &cri.ListPodSandboxRequest{}); err != nil {
		t.Error(err)
	} else {
		t.Logf("%d pods", len(pods.Items))
	}
}

// fuzzer fills messages from a source of chance.
type fuzzer struct {
	r     *rand.Rand
	words []string
	safe  map[protoreflect.Name]string // fields that always have one value
}

func (f *fuzzer) fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if value, ok := f.safe[field.Name()]; ok {
			m.Set(field, protoreflect.ValueOfString(value))
			continue
		}
		if f.r.Intn(3) == 0 || depth > 5 {
			continue
		}
		switch {
		case field.IsMap():
			entries := m.Mutable(field).Map()
			for range f.r.Intn(3) {
				key := protoreflect.ValueOfString(f.text()).MapKey()
				if field.MapKey().Kind() != protoreflect.StringKind {
					continue
				}
				if field.MapValue().Kind() == protoreflect.MessageKind {
					value := entries.NewValue()
					f.fill(value.Message(), depth+1)
					entries.Set(key, value)
				} else {
					entries.Set(key, f.scalar(field.MapValue()))
				}
			}
		case field.IsList():
			list := m.Mutable(field).List()
			for range f.r.Intn(3) {
				if field.Kind() == protoreflect.MessageKind {
					value := list.NewElement()
					f.fill(value.Message(), depth+1)
					list.Append(value)
				} else {
					list.Append(f.scalar(field))
				}
			}
		case field.Kind() == protoreflect.MessageKind:
			f.fill(m.Mutable(field).Message(), depth+1)
		default:
			m.Set(field, f.scalar(field))
		}
	}
}

func (f *fuzzer) text() string {
	// What is not UTF-8 never leaves the client: gRPC refuses it.
	return f.words[f.r.Intn(len(f.words))]
}

func (f *fuzzer) scalar(field protoreflect.FieldDescriptor) protoreflect.Value {
	numbers := []int64{0, 1, -1, 2, 80, 65536, 1 << 31, -1 << 31, 1<<63 - 1, -1 << 63}
	number := numbers[f.r.Intn(len(numbers))]
	switch field.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(f.r.Intn(2) == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(f.r.Intn(8) - 1))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(number))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(number))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(number)
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(uint64(number))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(number))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(number))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(f.text()))
	default:
		return protoreflect.ValueOfString(f.text())
	}
}
