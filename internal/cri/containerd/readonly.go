package containerd

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
)

// readOnly is a service with these calls alone: each other is refused before its request is read, so that no call that
// changes something can be reached by an oversight.
func readOnly(desc *grpc.ServiceDesc, answered ...string) *grpc.ServiceDesc {
	out := *desc
	out.Methods, out.Streams = slices.Clone(desc.Methods), slices.Clone(desc.Streams)
	for i := range out.Methods {
		if name := out.Methods[i].MethodName; !slices.Contains(answered, name) {
			out.Methods[i].Handler = refuse("/" + desc.ServiceName + "/" + name)
		}
	}
	for i := range out.Streams {
		if name := out.Streams[i].StreamName; !slices.Contains(answered, name) {
			err := refusal("/" + desc.ServiceName + "/" + name)
			out.Streams[i].Handler = func(any, grpc.ServerStream) error { return err }
		}
	}
	return &out
}

// refuse is the handler of a call that is not answered. It goes through the interceptor like all others, which logs it.
func refuse(method string) grpc.MethodHandler {
	err := refusal(method)
	return func(srv any, ctx context.Context, _ func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		handler := func(context.Context, any) (any, error) { return nil, err }
		if interceptor == nil {
			return handler(ctx, nil)
		}
		return interceptor(ctx, nil, &grpc.UnaryServerInfo{Server: srv, FullMethod: method}, handler)
	}
}

func refusal(method string) error {
	return fmt.Errorf("%s: Berth is not containerd, and answers only calls of containerd's API that read what there is; "+
		"use the CRI for all else: %w", method, errdefs.ErrNotImplemented)
}
