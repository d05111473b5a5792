package jail_test

import (
	"testing"

	"berth/internal/jail/jailtest"
)

// BenchmarkChild starts a child that does nothing, and waits for its end.
func BenchmarkChild(b *testing.B) {
	j := jailtest.Jail(b)
	for b.Loop() {
		if err := j.Check(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
