package metrics

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"berth/internal/model"
)

// Set is the metrics of one daemon. Its methods may be called concurrently, and cost a look into a table and an
// addition.
type Set struct {
	registry *prometheus.Registry

	pullSeconds, steps, execs, cni, records                              *prometheus.HistogramVec
	pullErrors, pullBytes, layers, exits, execErrors, streams, cniErrors *prometheus.CounterVec
	recordErrors                                                         *prometheus.CounterVec
	streamsOpen                                                          *prometheus.GaugeVec
	nri, verifiers                                                       *prometheus.HistogramVec
	nriErrors                                                            *prometheus.CounterVec
	pulls, nriPlugins                                                    prometheus.Gauge
	oomKills                                                             prometheus.Counter

	registries, plugins, nriNames, verifierNames values
}

// New makes a Set. Its registry also has what Go and the kernel say of the process.
func New(version string) *Set {
	m := &Set{
		registry:     prometheus.NewRegistry(),
		pullSeconds:  PullSeconds.HistogramVec(),
		steps:        StepSecs.HistogramVec(),
		execs:        ExecSeconds.HistogramVec(),
		cni:          CNISeconds.HistogramVec(),
		records:      RecordSeconds.HistogramVec(),
		pullErrors:   PullErrors.CounterVec(),
		pullBytes:    PullBytes.CounterVec(),
		layers:       PullLayers.CounterVec(),
		exits:        Exits.CounterVec(),
		execErrors:   ExecErrors.CounterVec(),
		streams:      Streams.CounterVec(),
		cniErrors:    CNIErrors.CounterVec(),
		recordErrors: RecordErrors.CounterVec(),
		nri:          NRISeconds.HistogramVec(),
		nriErrors:    NRIErrors.CounterVec(),
		verifiers:    VerifierSeconds.HistogramVec(),
		streamsOpen:  StreamsOpen.GaugeVec(),
	}
	pulls, oomKills, build := PullsRunning.GaugeVec(), OOMKills.CounterVec(), BuildInfo.GaugeVec()
	nriPlugins := NRIPlugins.GaugeVec()
	m.nriPlugins = nriPlugins.WithLabelValues()
	m.pulls, m.oomKills = pulls.WithLabelValues(), oomKills.WithLabelValues()
	build.WithLabelValues(version, runtime.Version()).Set(1)
	m.registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.pullSeconds, m.steps, m.execs, m.cni, m.records, m.pullErrors, m.pullBytes, m.layers, m.exits,
		m.execErrors, m.streams,
		m.cniErrors, m.recordErrors, m.streamsOpen, pulls, oomKills, build, m.nri, m.nriErrors, nriPlugins,
		m.verifiers,
	)
	for _, s := range []LayerSource{LayerPulled, LayerStored, LayerShared} {
		m.layers.WithLabelValues(string(s))
	}
	// An increase is seen only of a series that has been there before.
	for _, r := range []string{
		model.ReasonCompleted, model.ReasonError, model.ReasonOOMKilled, model.ReasonKeeperLost,
		model.ReasonRebooted, model.ReasonStartError,
	} {
		m.exits.WithLabelValues(r)
	}
	for _, kind := range []string{RecordPod, RecordContainer} {
		m.recordErrors.WithLabelValues(kind)
	}
	for _, kind := range []string{StreamExec, StreamAttach, StreamPortForward} {
		m.streamsOpen.WithLabelValues(kind)
		m.streams.WithLabelValues(kind)
	}
	return m
}

// Registry is where further collectors are registered, and what is served. It is nil for a nil Set.
func (m *Set) Registry() *prometheus.Registry {
	if m == nil {
		return nil
	}
	return m.registry
}

// Pull counts a pull that begins. The caller calls what it returns at the end.
func (m *Set) Pull(registry string) (end func(error)) {
	if m == nil {
		return func(error) {}
	}
	begin := time.Now()
	registry = m.registries.of(registry)
	m.pulls.Inc()
	return func(err error) {
		m.pulls.Dec()
		if err != nil {
			m.pullErrors.WithLabelValues(registry, reason(err)).Inc()
			return
		}
		m.pullSeconds.WithLabelValues(registry).Observe(time.Since(begin).Seconds())
	}
}

// LayerSource says where a pull has a layer from.
type LayerSource string

// The sources.
const (
	LayerPulled LayerSource = "registry" // the registry
	LayerStored LayerSource = "store"    // it was in the store
	LayerShared LayerSource = "pull"     // another pull was loading it
)

// Layer counts a layer that a pull needed.
func (m *Set) Layer(source LayerSource) {
	if m != nil {
		m.layers.WithLabelValues(string(source)).Inc()
	}
}

// LayerBytes counts bytes of a packed layer that came from a registry.
func (m *Set) LayerBytes(registry string, n int64) {
	if m != nil {
		m.pullBytes.WithLabelValues(m.registries.of(registry)).Add(float64(n))
	}
}

// Step counts a step of a call's start.
func (m *Set) Step(call, step string, took time.Duration) {
	if m != nil {
		m.steps.WithLabelValues(call, step).Observe(took.Seconds())
	}
}

// Exit counts the end of a container. oomKilled is whether the kernel killed it for want of memory.
func (m *Set) Exit(reason string, oomKilled bool) {
	if m == nil {
		return
	}
	m.exits.WithLabelValues(reason).Inc()
	if oomKilled {
		m.oomKills.Inc()
	}
}

// The kinds of execs.
const (
	ExecSync   = "sync"
	ExecStream = "stream"
)

// Exec counts an exec that has ended. err is why it gave no exit code.
func (m *Set) Exec(kind string, took time.Duration, err error) {
	if m == nil {
		return
	}
	m.execs.WithLabelValues(kind).Observe(took.Seconds())
	if err != nil {
		m.execErrors.WithLabelValues(kind, reason(err)).Inc()
	}
}

// The kinds of streams.
const (
	StreamExec        = "exec"
	StreamAttach      = "attach"
	StreamPortForward = "portforward"
)

// Stream counts a connection to the streaming server. The caller calls what it returns at the end.
func (m *Set) Stream(kind string) (end func()) {
	if m == nil {
		return func() {}
	}
	open := m.streamsOpen.WithLabelValues(kind)
	m.streams.WithLabelValues(kind).Inc()
	open.Inc()
	return open.Dec
}

// CNI counts a call of a CNI plugin.
func (m *Set) CNI(plugin, command string, took time.Duration, err error) {
	if m == nil {
		return
	}
	plugin = m.plugins.of(plugin)
	m.cni.WithLabelValues(plugin, command).Observe(took.Seconds())
	if err != nil {
		m.cniErrors.WithLabelValues(plugin, command).Inc()
	}
}

// VerifierResult is what an image verifier says of an image.
type VerifierResult string

const (
	VerifierAccepted VerifierResult = "accepted"
	VerifierRejected VerifierResult = "rejected"
	VerifierFailed   VerifierResult = "failed" // it gave no answer
)

// Verifier counts an image that an image verifier has looked at.
func (m *Set) Verifier(name string, result VerifierResult, took time.Duration) {
	if m != nil {
		m.verifiers.WithLabelValues(m.verifierNames.of(name), string(result)).Observe(took.Seconds())
	}
}

// NRI counts a call of an NRI plugin.
func (m *Set) NRI(plugin, call string, took time.Duration) {
	if m != nil {
		m.nri.WithLabelValues(m.nriNames.of(plugin), call).Observe(took.Seconds())
	}
}

// NRIError counts a call of an NRI plugin that failed. NRI counts it too.
func (m *Set) NRIError(plugin, call string) {
	if m != nil {
		m.nriErrors.WithLabelValues(m.nriNames.of(plugin), call).Inc()
	}
}

// NRIPlugins sets how many NRI plugins are connected.
func (m *Set) NRIPlugins(count int) {
	if m != nil {
		m.nriPlugins.Set(float64(count))
	}
}

// The kinds of records.
const (
	RecordPod       = "pod"
	RecordContainer = "container"
)

// Record counts a record that was written, or could not be.
func (m *Set) Record(kind string, took time.Duration, err error) {
	if m == nil {
		return
	}
	m.records.WithLabelValues(kind).Observe(took.Seconds())
	if err != nil {
		m.recordErrors.WithLabelValues(kind).Inc()
	}
}
