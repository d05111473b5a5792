package main

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/test/node"
)

func TestQuantilesAreSamples(t *testing.T) {
	r := &result{Figures: map[string]*figure{}}
	for i := 100; i > 0; i-- {
		r.add(rowExec, time.Duration(i)*time.Millisecond)
	}
	f := r.Figures[rowExec.Key]
	if f.P50 != 50 || f.P90 != 90 || f.P99 != 99 {
		t.Errorf("of 1 to 100 ms: %v, %v, %v", f.P50, f.P90, f.P99)
	}
	if f.P999 != 0 {
		t.Errorf("p99.9 of 100 samples is %v", f.P999)
	}
	for i := range 2000 {
		r.value(rowExecBusy, float64(i))
	}
	if f := r.Figures[rowExecBusy.Key]; f.P999 != 1997 {
		t.Errorf("p99.9 of 0 to 1999 is %v", f.P999)
	}
	r.add(rowPull, 1500*time.Millisecond)
	if f := r.Figures[rowPull.Key]; f.P50 != 1.5 || f.P99 != 1.5 {
		t.Errorf("of 1.5 s alone: %v, %v", f.P50, f.P99)
	}
}

func TestAnAddressHasANameAndASocket(t *testing.T) {
	var a addresses
	if err := a.Set("crio=unix:///run/crio/crio.sock"); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "unix:///run/x.sock", "=unix:///run/x.sock", "x=/run/x.sock", "x=tcp://127.0.0.1:1"} {
		if a.Set(bad) == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestAReportComparesWithTheFirstPeer(t *testing.T) {
	r := newReport([]*peer{{name: "one", version: "1"}, {name: "two", version: "2"}})
	r.Results[0].value(rowLog, 400)
	r.Results[1].value(rowLog, 100)
	r.Results[0].value(rowPSS0, 10)
	var table, data bytes.Buffer
	if err := r.write("", &table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"one: 1", "times as good", "stdout to log file", "4.00x", "PSS without pods"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("want %q in\n%s", want, table.String())
		}
	}
	if strings.Contains(table.String(), "ExecSync") {
		t.Errorf("a row that nobody has is shown:\n%s", table.String())
	}
	if err := r.write("-", &data); err != nil {
		t.Fatal(err)
	}
	var back report
	if err := json.Unmarshal(data.Bytes(), &back); err != nil || back.Results[1].Figures["log"].P50 != 100 {
		t.Errorf("%v: %s", err, data.String())
	}
}

// TestEveryRowIsMeasured runs it all in its smallest size. No figure is judged but that it is one.
func TestEveryRowIsMeasured(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a node needs root")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	binaries, err := node.Binaries(ctx)
	if err != nil {
		t.Fatal(err)
	}
	r, err := run(ctx, &options{
		berth: true, base: binaries, rounds: 1, turns: 1, lives: 1, execs: 1, pods: 2, burst: 2, logMiB: 2, lineBytes: 100,
		pullMiB: 2, pulls: 1, layerMiB: 1, layerRate: 50,
		crowd: 3, cni: true, firsts: 1, costs: 1,
		settle: 10 * time.Millisecond, idle: 100 * time.Millisecond, span: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		f := r.Results[0].Figures[row.Key]
		if f == nil || len(f.Samples) == 0 {
			t.Errorf("%s is not measured", row.Title)
		} else if math.IsNaN(f.P50) || f.P50 <= 0 && row.Key != rowIdle.Key && row.Key != rowPSSPod.Key {
			t.Errorf("%s is %v", row.Title, f.P50)
		}
	}
	if base := r.Results[1]; base.Name != "base" || len(base.Figures[rowExec.Key].Samples) != 1 ||
		base.Processes["berthd"] != 1 {
		t.Errorf("beside it: %+v", base)
	}
	if r.Results[0].Processes["berthd"] != 1 || r.Results[0].Processes["berth-keeper"] != 1 ||
		len(r.Results[0].Processes) != 2 {
		t.Errorf("the runtime's own processes: %v", r.Results[0].Processes)
	}
	file := filepath.Join(t.TempDir(), "result.json")
	var table bytes.Buffer
	if err := r.write(file, &table); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}
