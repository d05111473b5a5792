package unpack

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	rt "berth/internal/registrytest"
)

// BenchmarkLayer unpacks tars into memory: what a disk takes is not Berth's.
func BenchmarkLayer(b *testing.B) {
	// As a distribution is: directories with entries of their own, files of some kilobytes, links.
	var small []rt.Entry
	body := strings.Repeat("0123456789abcdef", 200)
	for i := range 300 {
		dir := fmt.Sprintf("usr/share/package-%d/doc/%d", i%60, i)
		small = append(small, rt.Dir(dir, 0o755))
		for k := range 20 {
			small = append(small, rt.File(fmt.Sprintf("%s/file-%d", dir, k), 0o644, body[:k*100]))
		}
		small = append(small, rt.Symlink(dir+"/link", "file-1"), rt.Hardlink(dir+"/hard", dir+"/file-1"))
	}
	// As builders without directories make them.
	var implied []rt.Entry
	for i := range 6000 {
		implied = append(implied, rt.File(fmt.Sprintf("app/%d/%d/file-%d", i%40, i%7, i), 0o644, "x"))
	}
	// Deep, as a package manager of JavaScript makes them.
	var deep []rt.Entry
	for i := range 300 {
		dir := strings.Repeat("node_modules/package-with-a-name/", 6) + fmt.Sprint(i)
		deep = append(deep, rt.Dir(dir, 0o755))
		for k := range 20 {
			deep = append(deep, rt.File(fmt.Sprintf("%s/file-%d", dir, k), 0o644, "x"))
		}
	}
	for _, c := range []struct {
		name    string
		entries []rt.Entry
	}{{"small", small}, {"implied", implied}, {"deep", deep}, {"large", rt.Random(1, "d", 20, 64<<20)}} {
		b.Run(c.name, func(b *testing.B) {
			data, err := rt.Tar(c.entries...)
			if err != nil {
				b.Fatal(err)
			}
			benchmarkLayer(b, data)
		})
	}
}

func benchmarkLayer(b *testing.B, data []byte) {
	b.Helper()
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		b.StopTimer()
		dir, err := os.MkdirTemp("/dev/shm", "berth-bench-")
		if err != nil {
			b.Fatal(err)
		}
		root, err := os.Open(dir)
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if _, err := Layer(context.Background(), root, bytes.NewReader(data), Limits{}, Calls{}); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		root.Close()
		if err := os.RemoveAll(dir); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkHostileLayer unpacks layers that were made to cost much, in three sizes: the time for an entry has to stay
// the same.
func BenchmarkHostileLayer(b *testing.B) {
	deep := func(n int) (out []rt.Entry) {
		for chain := range n / 2000 {
			path := fmt.Sprint(chain)
			for range 2000 {
				out = append(out, rt.Dir(path, 0o755))
				path += "/d"
			}
		}
		return out
	}
	replaced := func(n int) (out []rt.Entry) {
		for i := range n {
			out = append(out, rt.File(fmt.Sprintf("d%d/f", i), 0o644, ""))
		}
		for range 2 {
			for i := range n {
				out = append(out, rt.Symlink(fmt.Sprintf("l%d", i), "d0"))
			}
		}
		return out
	}
	hidden := func(n int) (out []rt.Entry) {
		for i := range n {
			out = append(out, rt.File(fmt.Sprintf("d%d/f", i), 0o644, ""), rt.Opaque(fmt.Sprintf("d%d", i)))
		}
		return out
	}
	for _, c := range []struct {
		name  string
		make  func(n int) []rt.Entry
		sizes []int
	}{{"deep", deep, []int{10_000, 30_000, 60_000}}, {"replaced", replaced, []int{5_000, 10_000, 20_000}},
		{"hidden", hidden, []int{5_000, 10_000, 20_000}}} {
		for _, n := range c.sizes {
			b.Run(fmt.Sprintf("%s/%d", c.name, n), func(b *testing.B) {
				entries := c.make(n)
				data, err := rt.Tar(entries...)
				if err != nil {
					b.Fatal(err)
				}
				benchmarkLayer(b, data)
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(entries)), "ns/entry")
			})
		}
	}
}
