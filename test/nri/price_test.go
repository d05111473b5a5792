package nri

import (
	"slices"
	"strings"
	"testing"
	"time"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// BenchmarkThePriceOfAPlugin starts pods on Berth and on containerd 2 by turns, each without a plugin and with one that
// wants all events and sets a variable of each container. It reports the medians of RunPodSandbox, CreateContainer and
// StartContainer together, in milliseconds.
func BenchmarkThePriceOfAPlugin(b *testing.B) {
	nodes := peers(b)
	took := map[string][]time.Duration{}
	start := func(n *node.Node) time.Duration {
		begin := time.Now()
		pod := nodetest.RunPod(b, n)
		pod.Run()
		d := time.Since(begin)
		pod.Remove()
		return d
	}
	for _, n := range nodes {
		nodetest.Pull(b, n, node.Busybox)
		start(n)
	}
	for b.Loop() {
		for name, n := range nodes {
			took[name] = append(took[name], start(n))
			p := connect(b, n, "10-price", &plugin{create: setEnv("FROM", "plugin")})
			took[name+"+plugin"] = append(took[name+"+plugin"], start(n))
			p.stub.Stop()
			<-p.closed
		}
	}
	for name, samples := range took {
		slices.Sort(samples)
		b.ReportMetric(float64(samples[len(samples)/2].Microseconds())/1000, "ms-"+strings.ToLower(name))
	}
}
