package cri

import (
	"context"
	"fmt"
	"log/slog"
	"path"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/internal/cri/request"
	"berth/internal/liblog"
)

// calls is the interceptor around every call.
type calls struct {
	log     *slog.Logger
	metrics *callMetrics
	names   map[string]request.Names // by gRPC service, or by service and method
	flying  *InFlight                // nil: nobody counts them
	failed  func(error)              // nil: nobody wants to know
}

func (c *calls) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (any, error) {
	c.flying.add(info.FullMethod, 1)
	defer c.flying.add(info.FullMethod, -1)
	start := time.Now()
	ctx, span := beginSpan(withPeer(ctx), info.FullMethod)
	resp, err := c.protect(ctx, info.FullMethod, func() (any, error) { return handler(ctx, req) })
	endSpan(span, err)
	c.done(ctx, info.FullMethod, req, start, err)
	return resp, err
}

func (c *calls) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	c.flying.add(info.FullMethod, 1)
	defer c.flying.add(info.FullMethod, -1)
	start := time.Now()
	ctx, span := beginSpan(withPeer(ss.Context()), info.FullMethod)
	_, err := c.protect(ctx, info.FullMethod, func() (any, error) { return nil, handler(srv, inContext{ss, ctx}) })
	endSpan(span, err)
	c.done(ctx, info.FullMethod, nil, start, err)
	return err
}

// inContext is a stream whose context says who calls, and has the call's span.
type inContext struct {
	grpc.ServerStream
	ctx context.Context
}

func (s inContext) Context() context.Context { return s.ctx }

// protect runs a handler, turns a panic of it into an error, and gives its error a code.
func (c *calls) protect(ctx context.Context, method string, handler func() (any, error)) (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			c.log.ErrorContext(ctx, "panic in a call", "method", path.Base(method), "panic", fmt.Sprint(p),
				"stack", string(debug.Stack()))
			resp, err = nil, status.Errorf(codes.Internal, "%s: an error in berthd itself; its log has the details",
				path.Base(method))
		}
	}()
	if resp, err = handler(); err != nil {
		if c.failed != nil {
			c.failed(err)
		}
		return nil, c.named(method, err)
	}
	return resp, nil
}

// named is the status of an error, which names a field as the API does whose method it is.
func (c *calls) named(method string, err error) error {
	st := status.Convert(Status(err))
	names, ok := c.names[strings.TrimPrefix(method, "/")]
	if !ok {
		names = c.names[strings.TrimPrefix(path.Dir(method), "/")]
	}
	text := names.Text(st.Message(), err)
	if text == st.Message() {
		return st.Err()
	}
	return status.Error(st.Code(), text)
}

func (c *calls) done(ctx context.Context, method string, req any, start time.Time, err error) {
	took := time.Since(start)
	code := status.Code(err)
	c.metrics.observe(method, code, took)
	level := level(code)
	if code == codes.Aborted && commandFailed(status.Convert(err)) {
		level = slog.LevelDebug
	}
	if code == codes.NotFound && strings.HasPrefix(method, containerdPrefix) {
		level = slog.LevelDebug // monitors ask for whatever looks like a container: another runtime's too
	}
	if !c.log.Enabled(ctx, level) {
		return
	}
	attrs := append(subject(req), slog.Float64("took_ms", liblog.Milliseconds(took)))
	if err != nil {
		attrs = append(attrs, slog.String("code", code.String()), slog.String("error", status.Convert(err).Message()))
	}
	c.log.LogAttrs(ctx, level, callName(method), attrs...)
}

// containerdPrefix is that of the methods of containerd's API, and berthPrefix of those of Berth's own.
const (
	containerdPrefix = "/containerd.services."
	berthPrefix      = "/berth.v1."
)

// callName is the name of a call in the log: its method's name. In containerd's API and in Berth's own, several
// services have a method List, so the service is named too.
func callName(method string) string {
	if strings.HasPrefix(method, containerdPrefix) || strings.HasPrefix(method, berthPrefix) {
		return strings.TrimPrefix(method, "/")
	}
	return path.Base(method)
}

// level is the log level of a call that ended with a code: the more the node is at fault, the higher.
func level(code codes.Code) slog.Level {
	switch code {
	case codes.OK, codes.Canceled: // a client that has seen enough of a stream cancels it
		return slog.LevelDebug
	case codes.NotFound, codes.InvalidArgument, codes.AlreadyExists, codes.Unimplemented, codes.OutOfRange:
		return slog.LevelInfo // the client's affair
	case codes.Internal, codes.DataLoss:
		return slog.LevelError
	}
	return slog.LevelWarn // also for Unknown, an image that is not verified
}

// subject picks out of a request what it speaks of. It takes known identifiers only: requests carry credentials and
// environments.
func subject(req any) []slog.Attr {
	var attrs []slog.Attr
	if r, ok := req.(interface{ GetPodSandboxId() string }); ok {
		attrs = append(attrs, slog.String("pod_id", r.GetPodSandboxId()))
	}
	if r, ok := req.(interface{ GetContainerId() string }); ok {
		attrs = append(attrs, slog.String("container_id", r.GetContainerId()))
	}
	return attrs
}
