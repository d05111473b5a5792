package v1alpha2

import (
	"context"
	"path"
	"slices"

	"google.golang.org/grpc"
)

// renamed is a service under another name. Generated handlers tell interceptors the name that they were generated with;
// these are told the name that the client called.
func renamed(desc grpc.ServiceDesc, name string) grpc.ServiceDesc {
	desc.ServiceName = name
	desc.Methods = slices.Clone(desc.Methods)
	desc.Streams = slices.Clone(desc.Streams) // those are told by the server, which knows
	for i, m := range desc.Methods {
		desc.Methods[i].Handler = func(srv any, ctx context.Context, decode func(any) error,
			around grpc.UnaryServerInterceptor) (any, error) {
			if around == nil {
				return m.Handler(srv, ctx, decode, nil)
			}
			return m.Handler(srv, ctx, decode, func(
				ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
			) (any, error) {
				told := *info
				told.FullMethod = "/" + name + "/" + path.Base(info.FullMethod)
				return around(ctx, req, &told, handler)
			})
		}
	}
	return desc
}
