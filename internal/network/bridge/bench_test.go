package bridge

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"berth/internal/model"
	"berth/internal/network/testhost"
)

// BenchmarkPod sets up and tears down one pod after another, with as many others there, each with two host ports.
func BenchmarkPod(b *testing.B) {
	for _, others := range []int{0, 200} {
		for _, ports := range []int{0, 2} {
			b.Run(fmt.Sprintf("others=%d/ports=%d", others, ports), func(b *testing.B) { benchmarkPod(b, others, ports) })
		}
	}
}

func benchmarkPod(b *testing.B, others, ports int) {
	br := open(b, Config{Name: "brbench", StateDir: b.TempDir()})
	mapping := func(n int) []model.PortMapping {
		return []model.PortMapping{tcp(int32(10000+2*n), 80), tcp(int32(10001+2*n), 81)}
	}
	for i := range others {
		attach(b, br, fmt.Sprint("other", i), mapping(i)...)
	}
	if others == 0 {
		attach(b, br, "only")
	}
	var up, down []time.Duration
	for n := 0; b.Loop(); n++ {
		// A name of its own: one that was there before would wait until the kernel has removed it.
		e := Endpoint{ID: fmt.Sprint("p", n), Pod: "default/p", NetNS: testhost.Namespace(b), Ports: mapping(20000)[:ports]}
		start := time.Now()
		_, err := br.Attach(ctx, e)
		testhost.Check(b, err)
		up = append(up, time.Since(start))
		start = time.Now()
		testhost.Check(b, br.Detach(ctx, e.ID))
		down = append(down, time.Since(start))
		testhost.Unpin(e.NetNS)
	}
	for name, all := range map[string][]time.Duration{"attach": up, "detach": down} {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds()), name+"-p50-µs")
		b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), name+"-p99-µs")
	}
}
