package device

import "slices"

// Pick chooses n of the available devices, in the order in which they are given where nothing speaks against it: all of
// must first, then such that few NUMA nodes are involved, then devices without a node. near are nodes that are involved
// already. It returns nil where there are fewer than n, or must has more or what is not available.
func Pick(available []Device, must []string, n int, near []int64) []string {
	if n > len(available) || len(must) > n {
		return nil
	}
	home := map[int64]bool{}
	for _, node := range near {
		home[node] = true
	}
	var picked []string
	left := slices.Clone(available)
	take := func(i int) {
		for _, node := range left[i].NUMA {
			home[node] = true
		}
		picked = append(picked, left[i].ID)
		left = slices.Delete(left, i, i+1)
	}
	for _, id := range must {
		i := slices.IndexFunc(left, func(d Device) bool { return d.ID == id })
		if i < 0 {
			return nil
		}
		take(i)
	}
	for len(picked) < n {
		node, ok := bestNode(left, n-len(picked), home, len(must) > 0)
		for i := 0; i < len(left) && len(picked) < n; {
			if ok && !slices.Contains(left[i].NUMA, node) {
				i++
				continue
			}
			take(i)
		}
	}
	return picked
}

// bestNode is the NUMA node to take devices from next; false: none of the devices has one.
func bestNode(left []Device, need int, home map[int64]bool, bound bool) (best int64, ok bool) {
	count := map[int64]int{}
	for _, d := range left {
		for _, node := range d.NUMA {
			count[node]++
		}
	}
	better := func(a, b int64) bool {
		suffices := func(node int64) bool { return count[node] >= need }
		for _, prefer := range []func(int64) bool{
			func(node int64) bool { return suffices(node) && home[node] },
			// With devices that are given already, their node is in it anyway: what it has comes first.
			func(node int64) bool { return bound && home[node] },
			suffices,
			func(node int64) bool { return home[node] },
		} {
			if prefer(a) != prefer(b) {
				return prefer(a)
			}
		}
		if count[a] != count[b] {
			// The tightest fit leaves the others whole; where none fits, the largest needs the fewest others.
			return (count[a] < count[b]) == suffices(a)
		}
		return a < b
	}
	for node := range count {
		if !ok || better(node, best) {
			best, ok = node, true
		}
	}
	return best, ok
}
