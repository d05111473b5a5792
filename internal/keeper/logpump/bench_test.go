package logpump

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkFile is the pump under a container that copies a file of lines to its stdout, as test/bench has it. What
// counts on a busy machine is the pump's own processor time for each MiB of what the container writes.
func BenchmarkFile(b *testing.B) {
	const size = 64 << 20
	for _, width := range []int{20, 100, 1000} {
		b.Run(fmt.Sprint("line", width), func(b *testing.B) {
			dir := b.TempDir()
			text := make([]byte, size)
			for i := range text {
				text[i] = 'x'
				if i%width == width-1 {
					text[i] = '\n'
				}
			}
			lines, path := filepath.Join(dir, "lines"), filepath.Join(dir, "log")
			if err := os.WriteFile(lines, text, 0o600); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(size)
			before := processorTime(b)
			for b.Loop() {
				_, p, w := pump(b, path)
				cat := exec.Command("busybox", "cat", lines)
				cat.Stdout = w
				if err := cat.Run(); err != nil {
					b.Fatal(err)
				}
				w.Close()
				<-p.Done()
				if err := os.Remove(path); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric((processorTime(b)-before)*1e6/float64(b.N*size>>20), "cpu-µs/MiB")
		})
	}
}

// processorTime is that of this process, in seconds.
func processorTime(b *testing.B) float64 {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
}
