package v1alpha1

import (
	"context"
	"io"
	"math"
	"math/rand/v2"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	api "berth/api/runtime/v1alpha1"
	"berth/internal/model"
)

func (r *recorder) StopSandbox(context.Context, string) error     { return nil }
func (r *recorder) RemoveSandbox(context.Context, string) error   { return nil }
func (r *recorder) StartContainer(context.Context, string) error  { return nil }
func (r *recorder) RemoveContainer(context.Context, string) error { return nil }
func (r *recorder) Remove(context.Context, string) error          { return nil }

func (r *recorder) ListSandboxes(context.Context, model.SandboxFilter) ([]*model.SandboxStatus, error) {
	return r.sandboxes, nil
}
func (r *recorder) Get(context.Context, string) (*model.Image, error) {
	return &model.Image{ID: "sha256:1"}, nil
}
func (r *recorder) List(context.Context) ([]*model.Image, error) {
	return []*model.Image{{ID: "sha256:1"}}, nil
}

// garble sets about half of a message's fields, to what a client should not send as often as to what it may.
func garble(rnd *rand.Rand, m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	texts := []string{"", "a", "/", "..", "/a/../b", "a\x00b", "\xff\xfe", "a=b", "a b", "10.0.0.1", "sha256:1", "😀\n"}
	numbers := []int64{0, 1, -1, 53, 65535, 65536, 100000, math.MaxInt32, math.MinInt32, math.MaxInt64, math.MinInt64}
	floats := []float64{0, 1, -1, 0.5, math.NaN(), math.Inf(1), math.Inf(-1), 1e300}
	text := func() protoreflect.Value { return protoreflect.ValueOfString(texts[rnd.IntN(len(texts))]) }
	value := func(f protoreflect.FieldDescriptor) protoreflect.Value {
		n := numbers[rnd.IntN(len(numbers))]
		switch f.Kind() {
		case protoreflect.BoolKind:
			return protoreflect.ValueOfBool(n > 0)
		case protoreflect.StringKind:
			return text()
		case protoreflect.BytesKind:
			return protoreflect.ValueOfBytes([]byte(texts[rnd.IntN(len(texts))]))
		case protoreflect.EnumKind:
			return protoreflect.ValueOfEnum(protoreflect.EnumNumber(n))
		case protoreflect.DoubleKind:
			return protoreflect.ValueOfFloat64(floats[rnd.IntN(len(floats))])
		case protoreflect.Int32Kind:
			return protoreflect.ValueOfInt32(int32(n))
		case protoreflect.Uint64Kind:
			return protoreflect.ValueOfUint64(uint64(n))
		}
		return protoreflect.ValueOfInt64(n)
	}
	for i := range fields.Len() {
		f := fields.Get(i)
		if rnd.IntN(2) == 0 || depth == 0 {
			continue
		}
		switch {
		case f.IsMap():
			m.Mutable(f).Map().Set(text().MapKey(), text())
		case f.IsList() && f.Message() != nil:
			for range rnd.IntN(3) {
				garble(rnd, m.Mutable(f).List().AppendMutable().Message(), depth-1)
			}
		case f.IsList():
			for range rnd.IntN(3) {
				m.Mutable(f).List().Append(value(f))
			}
		case f.Message() != nil:
			garble(rnd, m.Mutable(f).Message(), depth-1)
		default:
			m.Set(f, value(f))
		}
	}
}

// No request is answered by an error of the server's own.
func TestNoRequestOf2016BreaksTheAPI(t *testing.T) {
	d := open(t)
	d.rec.sandboxes = []*model.SandboxStatus{{ID: "p", Config: &model.SandboxConfig{}}}
	d.rec.containers = []*model.ContainerStatus{{ID: "c", Config: &model.ContainerConfig{}}}
	rnd := rand.New(rand.NewPCG(2016, 7))
	answered := map[codes.Code]int{}
	services := api.File_runtime_v1alpha1_runtime_proto.Services()
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			m := services.Get(i).Methods().Get(j)
			name := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
			for n := range 150 {
				req := dynamicpb.NewMessage(m.Input())
				if n > 0 {
					garble(rnd, req, 6)
				}
				err := send(t, d, name, m, req)
				code := status.Code(err)
				answered[code]++
				switch code {
				case codes.OK, codes.InvalidArgument, codes.NotFound, codes.Aborted:
				default:
					t.Errorf("%s %v: %v", m.Name(), req, err)
				}
			}
		}
	}
	t.Log(answered)
	if answered[codes.OK] == 0 || answered[codes.InvalidArgument] == 0 {
		t.Errorf("one-sided: %v", answered)
	}
}

func send(t *testing.T, d *fixture, name string, m protoreflect.MethodDescriptor, req proto.Message) error {
	t.Helper()
	resp := dynamicpb.NewMessage(m.Output())
	if !m.IsStreamingServer() {
		return d.conn.Invoke(t.Context(), name, req, resp)
	}
	s, err := d.conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, name)
	if err != nil {
		return err
	}
	if err := s.SendMsg(req); err != nil {
		return err
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	for err == nil {
		err = s.RecvMsg(resp)
	}
	if err == io.EOF {
		return nil
	}
	return err
}
