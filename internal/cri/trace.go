package cri

import (
	"context"
	"path"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// tracer makes the spans of traces. Without an OpenTelemetry provider, which the configuration sets, a span
// does nothing.
var tracer = otel.Tracer("berth/internal/cri")

// headers are a call's metadata, in which a client may say which span it is a part of.
type headers metadata.MD

func (h headers) Get(key string) string {
	if values := metadata.MD(h).Get(key); len(values) > 0 {
		return values[0]
	}
	return ""
}

func (h headers) Set(key, value string) { metadata.MD(h).Set(key, value) }

func (h headers) Keys() []string {
	keys := make([]string, 0, len(h))
	for key := range h {
		keys = append(keys, key)
	}
	return keys
}

var _ propagation.TextMapCarrier = headers{}

// beginSpan begins the span of a call.
func beginSpan(ctx context.Context, method string) (context.Context, trace.Span) {
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = otel.GetTextMapPropagator().Extract(ctx, headers(md))
	}
	return tracer.Start(ctx, path.Base(method), trace.WithSpanKind(trace.SpanKindServer))
}

func endSpan(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, status.Convert(err).Message())
	}
	span.End()
}
