package nodetest

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/pouch"
	"berth/test/node"
)

// V1alpha2 is a client of runtime.v1alpha2. Its messages are v1's, which are the same on the wire.
type V1alpha2 struct {
	cri.RuntimeServiceClient
	cri.ImageServiceClient
	Pouch   pouch.RuntimeServiceClient
	Volumes pouch.VolumeServiceClient
}

// DialV1alpha2 is a client on the node's connection.
func DialV1alpha2(n *node.Node) *V1alpha2 {
	conn := underV1alpha2{n.Conn}
	return &V1alpha2{cri.NewRuntimeServiceClient(conn), cri.NewImageServiceClient(conn),
		pouch.NewRuntimeServiceClient(n.Conn),
		pouch.NewVolumeServiceClient(n.Conn)}
}

// underV1alpha2 calls v1's methods by their names in v1alpha2.
type underV1alpha2 struct{ conn *grpc.ClientConn }

func (u underV1alpha2) Invoke(ctx context.Context, method string, in, out any, opts ...grpc.CallOption) error {
	return u.conn.Invoke(ctx, inV1alpha2(method), in, out, opts...)
}

func (u underV1alpha2) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string,
	opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return u.conn.NewStream(ctx, desc, inV1alpha2(method), opts...)
}

func inV1alpha2(method string) string {
	return strings.Replace(method, "/runtime.v1.", "/runtime.v1alpha2.", 1)
}
