package model

import "time"

// MetricDescriptor is a metric that a node exports of its pods and containers. Labels are keys, sorted.
type MetricDescriptor struct {
	Name   string
	Help   string
	Labels []string
}

// Metric is one value of a metric. Labels are in the order of its descriptor's.
type Metric struct {
	Name   string
	Gauge  bool      // else a counter
	At     time.Time // zero: read just now
	Labels []string
	Value  uint64
}

// SandboxMetrics are a pod's own metrics and those of its containers.
type SandboxMetrics struct {
	SandboxID  string
	Metrics    []Metric
	Containers []ContainerMetrics
}

// ContainerMetrics are a container's metrics.
type ContainerMetrics struct {
	ContainerID string
	Metrics     []Metric
}
