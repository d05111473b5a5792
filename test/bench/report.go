package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// row is a line of the report.
type row struct {
	Key, Title, Unit string
	Aim              float64 // how many times as good as a containerd Berth is to be; 0: nobody said
	more             bool    // a larger figure is better
	spread           bool    // p50, p90 and p99 are shown, and p99.9 of many samples; else the median
}

var (
	rowRun      = row{Key: "run_pod_sandbox", Title: "RunPodSandbox", Unit: "ms", spread: true}
	rowCreate   = row{Key: "create_container", Title: "CreateContainer", Unit: "ms", spread: true}
	rowStart    = row{Key: "start_container", Title: "StartContainer", Unit: "ms", spread: true}
	rowSum      = row{Key: "pod_to_running", Title: "the three together", Unit: "ms", spread: true, Aim: 15}
	rowCNI      = row{Key: "pod_to_running_cni", Title: "the same with CNI plugins", Unit: "ms", spread: true, Aim: 3}
	rowFirst    = row{Key: "first_pod", Title: "the same, first pod of a runtime", Unit: "ms"}
	rowExec     = row{Key: "exec_sync", Title: "ExecSync /bin/true", Unit: "ms", spread: true, Aim: 12}
	rowExecs    = row{Key: "execs_per_second", Title: "execs a second, 8 in flight", Unit: "1/s", more: true, Aim: 12}
	rowExecBusy = row{Key: "exec_sync_busy", Title: "ExecSync, 8 in flight", Unit: "ms", spread: true}
	rowCPULife  = quantityCPU.of(operationLife)
	rowCPUExec  = quantityCPU.of(operationExec)
	rowRemove   = row{Key: "stop_and_remove", Title: "stop and remove a pod", Unit: "ms", spread: true, Aim: 12}
	rowBurst    = row{Key: "pods_per_second", Title: "pods a second, 10 in flight", Unit: "1/s", more: true, Aim: 12}
	rowPSS0     = row{Key: "pss_empty", Title: "PSS without pods", Unit: "MiB"}
	rowPSSN     = row{Key: "pss_full", Title: "PSS with pods", Unit: "MiB"}
	rowPSSPod   = row{Key: "pss_per_pod", Title: "PSS a pod", Unit: "MiB", Aim: 25}
	rowIdle     = row{Key: "idle_cpu", Title: "idle CPU with pods", Unit: "%"}
	rowList     = row{Key: "list_containers", Title: "ListContainers with pods", Unit: "ms", spread: true}
	rowStats    = row{Key: "list_container_stats", Title: "ListContainerStats with pods", Unit: "ms", spread: true}
	rowLog      = row{Key: "log", Title: "stdout to log file", Unit: "MiB/s", more: true, Aim: 10}
	rowPull     = row{Key: "pull", Title: "pull of a large image", Unit: "s", Aim: 1.7}
	rowPullOne  = row{Key: "pull_one_layer", Title: "the same, one layer missing", Unit: "s"}
	rowLayer    = row{Key: "pull_slow_connections", Title: "pull of one large layer, slow connections", Unit: "s", Aim: 4}

	rowIdleWakeups = row{Key: "idle_wakeups", Title: "wake-ups a second, idle with pods", Unit: "1/s"}
	rowReady       = row{Key: "ready_again", Title: "ready again after kill -9", Unit: "ms"}
)

// rows are all but those of parts and those beside many pods.
var rows = slices.Concat([]row{
	rowRun, rowCreate, rowStart, rowSum, rowCNI, rowFirst, rowExec, rowExecs, rowExecBusy, rowRemove, rowBurst,
}, costRows(), []row{
	rowPSS0, rowPSSN, rowPSSPod, rowIdle, rowIdleWakeups, rowList, rowStats, rowLog, rowPull, rowPullOne, rowLayer,
})

// figure is a row's outcome for one peer, in the row's unit.
type figure struct {
	Samples []float64 `json:"samples"`
	P50     float64   `json:"p50"`
	P90     float64   `json:"p90"`
	P99     float64   `json:"p99"`
	P999    float64   `json:"p99.9,omitempty"` // of at least enough samples
}

// enough is how many samples p99.9 needs, so that it is not the slowest one.
const enough = 2000

// figures are the outcomes of rows by their keys.
type figures map[string]*figure

// result is what was measured of one peer.
type result struct {
	Name      string         `json:"name"`
	Version   string         `json:"version"`
	Figures   figures        `json:"figures"`
	Levels    []*level       `json:"levels,omitempty"`    // with the smallest number of pods first
	Processes map[string]int `json:"processes,omitempty"` // the runtime's own, with pods, by program
	PulledMiB float64        `json:"pulledMiB,omitempty"`
}

// report is one run.
type report struct {
	Machine  string    `json:"machine"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	Results  []*result `json:"results"`
}

func newReport(peers []*peer) *report {
	r := &report{Started: time.Now(), Machine: machine()}
	for _, p := range peers {
		r.Results = append(r.Results, &result{Name: p.name, Version: p.version, Figures: figures{}})
	}
	return r
}

func (r *report) of(p *peer) *result {
	for _, result := range r.Results {
		if result.Name == p.name {
			return result
		}
	}
	return nil
}

// add takes a time in the row's unit, ms or s.
func (r *result) add(row row, d time.Duration) { r.Figures.add(row, d) }

func (r *result) value(row row, values ...float64) { r.Figures.value(row, values...) }

func (f figures) add(row row, d time.Duration) { f.value(row, row.of(d)) }

// of is a time in the row's unit.
func (row row) of(d time.Duration) float64 {
	if row.Unit == "s" {
		return d.Seconds()
	}
	return float64(d) / float64(time.Millisecond)
}

func (f figures) value(row row, values ...float64) {
	one := f[row.Key]
	if one == nil {
		one = &figure{}
		f[row.Key] = one
	}
	one.Samples = append(one.Samples, values...)
	sorted := slices.Sorted(slices.Values(one.Samples))
	one.P50, one.P90, one.P99 = quantile(sorted, 0.5), quantile(sorted, 0.9), quantile(sorted, 0.99)
	if len(sorted) >= enough {
		one.P999 = quantile(sorted, 0.999)
	}
}

// samples are those of a row so far.
func (f figures) samples(row row) []float64 {
	if one := f[row.Key]; one != nil {
		return one.Samples
	}
	return nil
}

// quantile is the smallest sample that a share q of all are not above.
func quantile(sorted []float64, q float64) float64 {
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[max(0, min(i, len(sorted)-1))]
}

// write gives the report as a table, as JSON in a file besides, or, where that is "-", as JSON alone.
func (r *report) write(file string, out io.Writer) error {
	if file == "" {
		return r.print(out)
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	data = append(data, '\n')
	if file == "-" {
		_, err := out.Write(data)
		return err
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		return err
	}
	return r.print(out)
}

// print gives the report as a table.
func (r *report) print(out io.Writer) error {
	fmt.Fprintf(out, "%s\n", r.Machine)
	for _, result := range r.Results {
		fmt.Fprintf(out, "%s: %s", result.Name, result.Version)
		for _, name := range sortedKeys(result.Processes) {
			fmt.Fprintf(out, ", %d %s", result.Processes[name], name)
		}
		fmt.Fprintln(out)
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprint(w, "\tunit")
	for i, result := range r.Results {
		fmt.Fprintf(w, "\t%s", result.Name)
		if i > 0 {
			fmt.Fprint(w, "\ttimes as good")
		}
	}
	if len(r.Results) > 1 {
		fmt.Fprint(w, "\taim")
	}
	fmt.Fprintln(w)
	for _, row := range rows {
		if !r.has(row) {
			continue
		}
		fmt.Fprintf(w, "%s\t%s", row.Title, row.Unit)
		for i, result := range r.Results {
			f := result.Figures[row.Key]
			if f == nil {
				fmt.Fprint(w, "\t-")
				if i > 0 {
					fmt.Fprint(w, "\t-")
				}
				continue
			}
			if row.spread {
				fmt.Fprintf(w, "\t%s / %s / %s", short(f.P50), short(f.P90), short(f.P99))
				if f.P999 > 0 {
					fmt.Fprintf(w, " / %s", short(f.P999))
				}
			} else {
				fmt.Fprintf(w, "\t%s", short(f.P50))
			}
			if i > 0 {
				fmt.Fprintf(w, "\t%s", row.ratio(f, r.Results[0].Figures[row.Key]))
			}
		}
		if len(r.Results) > 1 && row.Aim > 0 {
			fmt.Fprintf(w, "\t%gx", row.Aim)
		}
		fmt.Fprintln(w)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := errors.Join(r.printParts(out), r.printLevels(out)); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\nThree figures are p50 / p90 / p99, a fourth is p99.9, and one alone is the median. "+
		"The aim is the ratio that Berth is to reach. %.0f s in all.\n", r.Finished.Sub(r.Started).Seconds())
	return err
}

func (r *report) has(row row) bool {
	for _, result := range r.Results {
		if result.Figures[row.Key] != nil {
			return true
		}
	}
	return false
}

func short(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// p50 and p99 choose a figure's quantile.
func p50(f *figure) float64 { return f.P50 }
func p99(f *figure) float64 { return f.P99 }

// times is how many times as good the first peer is as another one; 0 where that cannot be said.
func (row row) times(other, first *figure, of func(*figure) float64) float64 {
	if other == nil || first == nil || of(other) <= 0 || of(first) <= 0 {
		return 0
	}
	if row.more {
		return of(first) / of(other)
	}
	return of(other) / of(first)
}

// ratio is times in words, of the median and, where the row shows it, of p99.
func (row row) ratio(other, first *figure) string {
	times := row.times(other, first, p50)
	if times == 0 {
		return "-"
	}
	text := short(times) + "x"
	if late := row.times(other, first, p99); row.spread && late > 0 {
		text += ", p99 " + short(late) + "x"
	}
	return text
}

// moveCNI makes the starts of the Berth with CNI plugins a row of Berth's. containerd has no other network,
// so its own starts are what they compare with.
func (r *report) moveCNI() {
	i := slices.IndexFunc(r.Results, func(r *result) bool { return r.Name == cniPeer })
	if i < 0 {
		return
	}
	r.Results[0].Figures[rowCNI.Key] = r.Results[i].Figures[rowSum.Key]
	r.Results = slices.Delete(r.Results, i, i+1)
	for _, other := range r.Results[1:] {
		other.Figures[rowCNI.Key] = other.Figures[rowSum.Key]
	}
}

// append adds the samples to a file.
func (r *report) append(file string) error {
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(r.samples(out), out.Close())
}

// samples gives all samples in the format of Go's benchmarks, which benchstat compares.
func (r *report) samples(out io.Writer) error {
	var errs []error
	give := func(f figures, list []row, name, suffix string) {
		for _, row := range list {
			for _, sample := range f.samples(row) {
				_, err := fmt.Fprintf(out, "Benchmark/%s/%s%s 1 %g %s\n", name, row.Key, suffix, sample, row.Unit)
				errs = append(errs, err)
			}
		}
	}
	for _, result := range r.Results {
		give(result.Figures, rows, result.Name, "")
		give(result.Figures, partRows(), result.Name, "")
		for _, l := range result.Levels {
			give(l.Figures, growthRows, result.Name, fmt.Sprintf("/pods=%d", l.Pods))
		}
	}
	return errors.Join(errs...)
}

// machine is what the figures hold for.
func machine() string {
	var uts unix.Utsname
	kernel := "?"
	if unix.Uname(&uts) == nil {
		kernel = unix.ByteSliceToString(uts.Release[:])
	}
	model := "?"
	if file, err := os.Open("/proc/cpuinfo"); err == nil {
		defer file.Close()
		for scanner := bufio.NewScanner(file); scanner.Scan(); {
			if key, value, ok := strings.Cut(scanner.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	memory := uint64(0)
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		memory = uint64(info.Totalram) * uint64(info.Unit) >> 20
	}
	return fmt.Sprintf("%d processors (%s), %d MiB, Linux %s", runtime.NumCPU(), model, memory, kernel)
}
