package cri

import (
	"bytes"
	"testing"
	"unsafe"

	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/protobuf/proto"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestOutputsOfCommandsAreNotCopied for their answers, whose bytes are those that gRPC's own codec writes. Seen to fail
// with that codec.
func TestOutputsOfCommandsAreNotCopied(t *testing.T) {
	c := codec{encoding.GetCodecV2(grpcproto.Name)}
	text := func(n int) []byte { return bytes.Repeat([]byte("x"), n) }
	for _, r := range []*api.ExecSyncResponse{
		{}, {ExitCode: -1}, {Stdout: text(5), Stderr: text(7), ExitCode: 3},
		{Stdout: text(1 << 20)}, {Stderr: text(1 << 20)}, {Stdout: text(1 << 20), Stderr: text(200), ExitCode: 137},
		{Stdout: text(largeOutput / 2), Stderr: text(largeOutput / 2), ExitCode: -1},
	} {
		got, err := c.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		want, err := proto.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Materialize(), want) {
			t.Errorf("%d, %d bytes, code %d: it is written otherwise", len(r.Stdout), len(r.Stderr), r.ExitCode)
		}
		if len(r.Stdout)+len(r.Stderr) < largeOutput {
			continue
		}
		for _, output := range [][]byte{r.Stdout, r.Stderr} {
			same := len(output) == 0
			for _, b := range got {
				same = same || unsafe.SliceData(b.ReadOnlyData()) == unsafe.SliceData(output)
			}
			if !same {
				t.Errorf("%d bytes are copied", len(output))
			}
		}
	}
	if _, err := c.Marshal("no message"); err == nil {
		t.Error("what is no message is written")
	}
}
