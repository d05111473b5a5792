package cri

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// largeOutput is how much output of a command is not copied for its answer.
const largeOutput = 64 << 10

// codec is gRPC's own, but for large outputs of commands: it does not copy them. A copy would be memory that no bound
// counts, until a slow client has read it.
type codec struct{ encoding.CodecV2 }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	r, ok := v.(*api.ExecSyncResponse)
	if !ok || len(r.Stdout)+len(r.Stderr) < largeOutput {
		return c.CodecV2.Marshal(v)
	}
	var out mem.BufferSlice
	for i, output := range [][]byte{r.Stdout, r.Stderr} { // fields 1 and 2
		if len(output) > 0 {
			head := protowire.AppendTag(nil, protowire.Number(i+1), protowire.BytesType)
			head = protowire.AppendVarint(head, uint64(len(output)))
			out = append(out, mem.SliceBuffer(head), mem.SliceBuffer(output))
		}
	}
	rest, err := proto.Marshal(&api.ExecSyncResponse{ExitCode: r.ExitCode})
	if err != nil {
		return nil, err
	}
	return append(out, mem.SliceBuffer(rest)), nil
}
