package v1

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"strings"
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
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
	"berth/internal/model"
)

// methods are all calls of the interface, those included that are not implemented.
func methods(t testing.TB) []protoreflect.MethodDescriptor {
	t.Helper()
	var out []protoreflect.MethodDescriptor
	for _, name := range []protoreflect.FullName{"runtime.v1.RuntimeService", "runtime.v1.ImageService"} {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
		if err != nil {
			t.Fatal(err)
		}
		list := d.(protoreflect.ServiceDescriptor).Methods()
		for i := range list.Len() {
			out = append(out, list.Get(i))
		}
	}
	return out
}

func newMessage(t testing.TB, d protoreflect.MessageDescriptor) proto.Message {
	t.Helper()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		t.Fatal(err)
	}
	return kind.New().Interface()
}

// absurd are strings that have broken something somewhere.
var absurd = []string{"", ".", "..", "/", "../../etc/passwd", "/a/../../b", "a\x00b", "a\nb", "\u202e",
	strings.Repeat("x", 70000),
	"%s%n", "localhost/", "localhost//", "runtime/default", "-1", "0-", "10.0.0.0/99", ":::", "sha256:",
	"@", "::1%eth0", " ", "=", "a/b=c"}

var numbers = []int64{0, 1, -1, 2, 3, 99, 65535, 65536, 1 << 31, 1<<31 - 1, -1 << 31, 1 << 32, 1<<63 - 1, -1 << 63}

// filler fills messages with random and absurd values.
type filler struct{ *rand.Rand }

func (f filler) fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		if f.IntN(3) > 0 {
			f.set(m, fields.Get(i), depth)
		}
	}
	if f.IntN(4) == 0 { // a field of a later version: number 1000, a varint
		m.SetUnknown(protoreflect.RawFields{0xc0, 0x3e, byte(f.IntN(128))})
	}
}

func (f filler) set(m protoreflect.Message, fd protoreflect.FieldDescriptor, depth int) {
	switch {
	case fd.IsMap():
		values := m.Mutable(fd).Map()
		for range f.IntN(3) {
			v := values.NewValue()
			if fd.MapValue().Message() == nil {
				v = f.scalar(fd.MapValue())
			}
			values.Set(f.scalar(fd.MapKey()).MapKey(), v)
		}
	case fd.IsList():
		list := m.Mutable(fd).List()
		for range f.IntN(4) {
			if fd.Message() == nil {
				list.Append(f.scalar(fd))
				continue
			}
			v := list.NewElement()
			if depth > 0 {
				f.fill(v.Message(), depth-1)
			}
			list.Append(v)
		}
	case fd.Message() != nil:
		if depth > 0 {
			f.fill(m.Mutable(fd).Message(), depth-1)
		}
	default:
		m.Set(fd, f.scalar(fd))
	}
}

func (f filler) scalar(fd protoreflect.FieldDescriptor) protoreflect.Value {
	n := numbers[f.IntN(len(numbers))]
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(n&1 == 1)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(int32(n)))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(n)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(n))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(n))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(absurd[f.IntN(len(absurd))]))
	}
	return protoreflect.ValueOfString(absurd[f.IntN(len(absurd))])
}

// spoil changes one field somewhere in a message that was good.
func (f filler) spoil(m protoreflect.Message) {
	for {
		var inner []protoreflect.Message
		m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			switch {
			case fd.Message() == nil || fd.IsMap():
			case fd.IsList():
				for i := range v.List().Len() {
					inner = append(inner, v.List().Get(i).Message())
				}
			default:
				inner = append(inner, v.Message())
			}
			return true
		})
		if len(inner) == 0 || f.IntN(3) == 0 {
			break
		}
		m = inner[f.IntN(len(inner))]
	}
	if fields := m.Descriptor().Fields(); fields.Len() > 0 {
		f.set(m, fields.Get(f.IntN(fields.Len())), 2)
	}
}

// populated is the API with something behind it, so that calls get further.
func populated(t testing.TB) *fixture {
	d := open(t, slog.LevelError)
	d.rec.sandboxes = []*model.SandboxStatus{{ID: "pod1", State: model.SandboxReady}, {}}
	d.rec.containers = []*model.ContainerStatus{{ID: "c", State: model.ContainerRunning}, {State: "odd"}}
	d.rec.usage = []*model.ContainerUsage{{}, {Container: d.rec.containers[0], CPU: &model.CPUUsage{}}}
	d.rec.podUsage = []*model.SandboxUsage{{}, {Sandbox: d.rec.sandboxes[0], Network: make([]model.InterfaceUsage, 2)}}
	d.rec.images = []*model.Image{{}, {ID: "sha256:1"}}
	d.rec.events = []model.ContainerEvent{{},
		{Type: "odd", Sandbox: &model.SandboxStatus{}, Containers: []*model.ContainerStatus{{}}}}
	return d
}

// send makes a call and says if it ended as calls must: with an answer, or an error that has a code.
func send(t testing.TB, d *fixture, m protoreflect.MethodDescriptor, req any, opts ...grpc.CallOption) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	name := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
	var err error
	if m.IsStreamingServer() {
		var s grpc.ClientStream
		s, err = d.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, name, opts...)
		if err == nil {
			err = s.SendMsg(req)
			s.CloseSend()
			for err == nil {
				err = s.RecvMsg(newMessage(t, m.Output()))
			}
			if errors.Is(err, io.EOF) {
				err = nil
			}
		}
	} else {
		err = d.conn.Invoke(ctx, name, req, newMessage(t, m.Output()), opts...)
	}
	switch status.Code(err) {
	case codes.Unknown, codes.DeadlineExceeded, codes.DataLoss:
		t.Errorf("%s: %v\n%v", m.Name(), err, req)
	case codes.Internal:
		if !strings.Contains(err.Error(), "unmarshal") { // what is no message at all never gets to the API
			t.Errorf("%s: %v\n%v", m.Name(), err, req)
		}
	}
	if strings.Contains(d.log.String(), "panic") {
		t.Fatalf("%s: %s\n%v", m.Name(), d.log.String(), req)
	}
}

func TestEmptyAndAbsurdRequestsAreAnswered(t *testing.T) {
	if testing.Short() {
		t.Skip("makes thousands of requests: run without -short")
	}
	d := populated(t)
	random := filler{rand.New(rand.NewPCG(1, 2))}
	good := map[string]proto.Message{"RunPodSandbox": sandboxRequest(), "CreateContainer": containerRequest()}
	for _, m := range methods(t) {
		send(t, d, m, newMessage(t, m.Input()))
		for range 40 {
			req := newMessage(t, m.Input())
			random.fill(req.ProtoReflect(), 5)
			send(t, d, m, req)
		}
		if base := good[string(m.Name())]; base != nil {
			for range 500 {
				req := proto.Clone(base)
				random.spoil(req.ProtoReflect())
				send(t, d, m, req)
			}
		}
	}
}

// A client in this process, and a mistake of ours, can pass what the wire cannot: nil messages, also inside of lists.
func TestNilsDoNotPanic(t *testing.T) {
	rec := populated(t).rec
	deps := Deps{Runtime: rec, Images: recordedImages{rec}, Streams: recordedStreams{rec}}
	services := []any{&runtimeService{Deps: deps, dialect: V1{}}, &imageService{Deps: deps, dialect: V1{}}}
	for i, desc := range []grpc.ServiceDesc{api.RuntimeService_ServiceDesc, api.ImageService_ServiceDesc} {
		for _, m := range desc.Methods {
			call := reflect.ValueOf(services[i]).MethodByName(m.MethodName)
			kind := call.Type().In(1).Elem()
			requests := []reflect.Value{reflect.Zero(reflect.PointerTo(kind)), reflect.New(kind)}
			hollow := reflect.New(kind)
			hollowOut(hollow.Elem(), 4)
			requests = append(requests, hollow)
			for _, req := range requests {
				out := call.Call([]reflect.Value{reflect.ValueOf(t.Context()), req})
				if err, _ := out[1].Interface().(error); err != nil && status.Code(cri.Status(err)) == codes.Unknown {
					t.Errorf("%s: %v", m.MethodName, err)
				}
			}
		}
	}
}

// hollowOut gives every list of messages a nil element, and every message field a hollow message.
func hollowOut(v reflect.Value, depth int) {
	for i := range v.NumField() {
		f := v.Field(i)
		if !f.CanSet() || depth == 0 {
			continue
		}
		switch {
		case f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.Pointer:
			f.Set(reflect.Append(f, reflect.Zero(f.Type().Elem())))
		case f.Kind() == reflect.Pointer && f.Type().Elem().Kind() == reflect.Struct:
			inner := reflect.New(f.Type().Elem())
			hollowOut(inner.Elem(), depth-1)
			f.Set(inner)
		}
	}
}

// raw sends bytes as they are.
type raw struct{ encoding.CodecV2 }

func (r raw) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.([]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return r.CodecV2.Marshal(v)
}

func FuzzRequestsOnTheWire(f *testing.F) {
	list := methods(f)
	random := filler{rand.New(rand.NewPCG(3, 4))}
	for i, m := range list {
		f.Add(uint8(i), []byte{})
		f.Add(uint8(i), []byte{0xff, 0xff, 0xff})
		req := newMessage(f, m.Input())
		random.fill(req.ProtoReflect(), 3)
		wire, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), wire)
	}
	d := populated(f)
	codec := grpc.ForceCodecV2(raw{encoding.GetCodecV2("proto")})
	f.Fuzz(func(t *testing.T, n uint8, wire []byte) {
		send(t, d, list[int(n)%len(list)], wire, codec)
	})
}
