package streaming

import (
	"context"
	"errors"
	"io"
	"testing"
)

// TestAReadThatIsGivenUpTakesNothing: what arrives afterwards is the next reader's, whole.
func TestAReadThatIsGivenUpTakesNothing(t *testing.T) {
	r, w := io.Pipe()
	in := NewInput(r)
	ctx, cancel := context.WithCancel(t.Context())
	given := make(chan error)
	go func() {
		_, err := in.Reader(ctx).Read(make([]byte, 10))
		given <- err
	}()
	cancel()
	if err := <-given; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	go func() {
		_, _ = io.WriteString(w, "hello ")
		_, _ = io.WriteString(w, "there")
		w.Close()
	}()
	small := make([]byte, 2)
	if _, err := io.ReadFull(in.Reader(t.Context()), small); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(in.Reader(t.Context()))
	if err != nil || string(small)+string(rest) != "hello there" {
		t.Errorf("%q and %q, %v", small, rest, err)
	}
}
