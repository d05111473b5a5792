package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"berth/internal/config"
)

// tracingWait bounds the last delivery of spans when berthd ends.
const tracingWait = 2 * time.Second

// sendSpans sends spans where the configuration says so. Without, none is made.
func sendSpans(ctx context.Context, cfg *config.Config, log *slog.Logger) (stop func() error, err error) {
	if cfg.Tracing.Endpoint == "" {
		return func() error { return nil }, nil
	}
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(cfg.Tracing.Endpoint))
	if err != nil {
		return nil, fmt.Errorf("tracing.endpoint: %w", err)
	}
	about, err := resource.Merge(resource.Default(), resource.NewSchemaless(
		attribute.String("service.name", "berthd"), attribute.String("service.version", version)))
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
	otel.SetTracerProvider(provider)
	otel.SetTextMapPropagator(propagation.TraceContext{})
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("spans are lost", "error", err) }))
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), tracingWait)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			log.Warn("the last spans are lost", "error", err)
		}
		return nil
	}, nil
}
