package usage

import "testing"

func number[T any](n T) *T { return &n }

// TestAPodIsLimitedWhereEachOfItsContainersIs: one container without a limit may take what the node has.
func TestAPodIsLimitedWhereEachOfItsContainersIs(t *testing.T) {
	a := Row{MemoryLimit: number(uint64(64 << 20)), CPULimit: number(0.5)}
	b := Row{MemoryLimit: number(uint64(32 << 20))}
	memory, cpu := sums([]Row{a, b})
	if memory == nil || *memory != 96<<20 || cpu != nil {
		t.Errorf("memory %v, cpu %v", memory, cpu)
	}
	if memory, cpu := sums(nil); memory != nil || cpu != nil {
		t.Errorf("without containers: memory %v, cpu %v", memory, cpu)
	}
	if share := Of(number(0.25), a.CPULimit); share == nil || *share != 50 {
		t.Errorf("share %v", share)
	}
	if share := Of(number(0.25), b.CPULimit); share != nil {
		t.Errorf("share of no limit: %v", *share)
	}
}

// TestPodsAreSortedWithTheirContainers: most first, what is not known last, and containers stay below their pod.
func TestPodsAreSortedWithTheirContainers(t *testing.T) {
	rows := []Row{
		{Pod: "a", CPU: number(0.1)}, {Pod: "a", Container: "a1", CPU: number(0.1)},
		{Pod: "b"}, {Pod: "b", Container: "b1"},
		{Pod: "c", CPU: number(2.0)}, {Pod: "c", Container: "c1", CPU: number(0.5)}, {Pod: "c", Container: "c2"},
	}
	got := ""
	for _, r := range Sort(rows, func(r Row) *float64 { return r.CPU }) {
		got += r.Pod + r.Container + " "
	}
	if got != "c cc1 cc2 a aa1 b bb1 " {
		t.Error(got)
	}
}
