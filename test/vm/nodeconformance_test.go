package main

import "testing"

// TestSpecsAreCounted has a summary with two failures, of which one was expected.
func TestSpecsAreCounted(t *testing.T) {
	var r result
	r.countSpecs([]byte("14 images: 2.5s\n" +
		"berth, seed 1795526889: 274 passed, 2 failed (1 of them expected), 3 skipped, 921 left out, 3m21s\n"))
	if r.passed != 274 || r.failed != 1 || r.skipped != 3 {
		t.Errorf("%d passed, %d failed, %d skipped; want 274, 1 and 3", r.passed, r.failed, r.skipped)
	}
}
