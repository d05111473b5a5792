package client_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// quantiles reports p50 and p99 of what was measured.
func quantiles(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}

// processorTime reports what the keeper and its children used for each round: a figure that other work on the machine
// changes less than the time that passes.
func (n *node) processorTime(b *testing.B) (report func()) {
	pid := n.pid()
	read := func() (own, children int) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			b.Fatal(err)
		}
		f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		var ticks [4]int // utime, stime, cutime, cstime
		for i := range ticks {
			if ticks[i], err = strconv.Atoi(f[11+i]); err != nil {
				b.Fatal(err)
			}
		}
		return ticks[0] + ticks[1], ticks[2] + ticks[3]
	}
	own, children := read()
	return func() {
		o, c := read()
		const tick = 10 // ms; USER_HZ is 100 everywhere
		b.ReportMetric(float64(tick*(o-own))/float64(b.N), "keeper-cpu-ms")
		b.ReportMetric(float64(tick*(c-children))/float64(b.N), "children-cpu-ms")
	}
}

func BenchmarkRun(b *testing.B) {
	n := start(b)
	var took, gone []time.Duration
	phases := map[string][]time.Duration{}
	defer n.processorTime(b)()
	i := 0
	for b.Loop() {
		i++
		id := fmt.Sprint("c", i)
		req := n.request(id, "sleep", "1000")
		req.Spec.Linux.Seccomp = profile()
		began := time.Now()
		res := n.run(req)
		took = append(took, time.Since(began))
		for _, p := range res.Phases {
			phases[p.Name] = append(phases[p.Name], p.Took)
		}
		began = time.Now()
		n.delete(id)
		gone = append(gone, time.Since(began))
	}
	quantiles(b, took)
	slices.Sort(gone)
	b.ReportMetric(float64(gone[len(gone)/2].Microseconds())/1000, "delete-p50-ms")
	for name, took := range phases {
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, name+"-p50-ms")
	}
}

func BenchmarkExec(b *testing.B) {
	for _, timeout := range []time.Duration{0, time.Minute} {
		b.Run(fmt.Sprint("timeout=", timeout), func(b *testing.B) {
			n := start(b)
			req := n.request("a", "sleep", "1000")
			req.Spec.Linux.Seccomp = profile()
			n.run(req)
			n.exec("a", 0, "true")
			var took []time.Duration
			defer n.processorTime(b)()
			for b.Loop() {
				began := time.Now()
				n.exec("a", timeout, "true")
				took = append(took, time.Since(began))
			}
			quantiles(b, took)
		})
	}
}

func BenchmarkLog(b *testing.B) {
	n := start(b)
	const size = 64 << 20
	i := 0
	b.SetBytes(size)
	for b.Loop() {
		i++
		id := fmt.Sprint("c", i)
		req := n.request(id, "sh", "-c", "cat /tmp/text")
		if i == 1 {
			text := make([]byte, 0, size)
			line := []byte("0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456\n")
			for len(text)+len(line) <= size {
				text = append(text, line...)
			}
			if err := os.WriteFile(n.root+"/tmp/text", text, 0o644); err != nil {
				b.Fatal(err)
			}
		}
		n.run(req)
		n.until("all is in the log", func() bool {
			st, err := n.client.Status(n.ctx(), id)
			return err == nil && st.LogDone
		})
		b.StopTimer()
		n.delete(id)
		_ = os.Remove(n.logPath(id))
		b.StartTimer()
	}
}
