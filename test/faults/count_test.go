package faults

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/test/faults/tally"
	"berth/test/node"
)

// counts is what a test counts, for any number of goroutines.
type counts struct {
	mu  sync.Mutex // guards row
	row tally.Row
}

// tests has the counts of each test that runs, by the test's name.
var tests sync.Map

// count is the counter of a test. Its row is written when the test ends, where somebody asks for it; the rows
// of subtests are added to that of their test.
func count(t *testing.T) *counts {
	t.Helper()
	scenario, _, _ := strings.Cut(t.Name(), "/")
	made, there := tests.LoadOrStore(t.Name(), &counts{row: tally.Row{Scenario: scenario}})
	c := made.(*counts)
	if there {
		return c
	}
	t.Cleanup(func() {
		tests.Delete(t.Name())
		path := os.Getenv(tally.EnvFile)
		if path == "" {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if err := c.row.Append(path); err != nil {
			t.Error(err)
		}
	})
	return c
}

// add counts n more; of a time, of memory and of descriptors the largest is kept.
func (c *counts) add(column tally.Column, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.row.Add(column, n)
}

func (c *counts) get(column tally.Column) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.row.Counts[column]
}

// answered says how long calls were not answered.
func (c *counts) answered(after time.Duration) { c.add(tally.Silence, int64(after)) }

// before measures berthd and keeper, at a time when the node has done all that it does once; nothingLeft measures them
// again.
func (c *counts) before(t *testing.T, n *node.Node) {
	t.Helper()
	c.measure(t, n, tally.MemoryBefore, tally.FilesBefore)
}

func (c *counts) after(t *testing.T, n *node.Node) {
	t.Helper()
	if c.get(tally.FilesBefore) > 0 {
		c.measure(t, n, tally.MemoryAfter, tally.FilesAfter)
	}
}

func (c *counts) measure(t *testing.T, n *node.Node, memory, files tally.Column) {
	t.Helper()
	keeper, ok := n.KeeperPID()
	if !ok || n.PID() == 0 {
		t.Fatalf("nobody to measure: berthd is %d, a keeper answers: %v", n.PID(), ok)
	}
	var bytes, open int64
	for _, pid := range []int{n.PID(), keeper} {
		pss, err := node.PSS(pid)
		if err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			t.Fatal(err)
		}
		bytes += int64(pss)
		open += int64(len(entries))
	}
	c.add(memory, bytes)
	c.add(files, open)
}

// size is how much of something a scenario does: few where nobody counts, as among all tests, and many in a round
// of `make faults`.
func size(few, many int) int {
	if os.Getenv(tally.EnvFile) == "" {
		return few
	}
	return many
}
