package client_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/containerd/errdefs"

	keeper "berth/internal/keeper/client"
)

// TestAFirstClientGetsAllOutput: the program writes as soon as it begins, and ends. A client that is attached after Run
// has returned gets nothing of it, mostly.
func TestAFirstClientGetsAllOutput(t *testing.T) {
	n := start(t)
	const lines = 10000
	var want bytes.Buffer
	for i := 1; i <= lines; i++ {
		fmt.Fprintln(&want, i)
	}
	for i, terminal := range []bool{false, true} {
		id := fmt.Sprint("a", i)
		req := n.request(id, "seq", "1", fmt.Sprint(lines))
		req.Spec.Process.Terminal = terminal
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		req.Attach = &keeper.AttachRequest{AttachID: "first", Stdout: w}
		n.run(req)
		w.Close()
		got, err := io.ReadAll(r)
		if terminal {
			got = bytes.ReplaceAll(got, []byte("\r\n"), []byte("\n"))
		}
		if err != nil || !bytes.Equal(got, want.Bytes()) {
			t.Errorf("terminal %t: %d bytes of %d, %v", terminal, len(got), want.Len(), err)
		}
		n.ended(id)
		if err := n.client.Detach(n.ctx(), id, "first"); err != nil {
			t.Errorf("detach: %v", err)
		}
	}
}

// TestAFirstClientOfAFailedStartReadsTheEnd: its files do not stay open in the keeper. Without dropFirst the test waits
// for the end for ever.
func TestAFirstClientOfAFailedStartReadsTheEnd(t *testing.T) {
	n := start(t)
	for name, change := range map[string]func(*keeper.RunRequest){
		"the program is missing": func(*keeper.RunRequest) {},
		"the client's directory": func(req *keeper.RunRequest) { req.Attach.SpillDir = "relative" },
		"the container is known": func(req *keeper.RunRequest) {
			n.run(n.request(req.ID, "sleep", "100"))
		},
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		req := n.request("b", "/no/such/program")
		req.Attach = &keeper.AttachRequest{AttachID: "first", Stdout: w}
		change(req)
		if _, err := n.client.Run(n.ctx(), req); err == nil {
			t.Errorf("%s: the container has started", name)
		} else if name == "the client's directory" && !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
		w.Close()
		if got, err := io.ReadAll(r); err != nil || len(got) > 0 {
			t.Errorf("%s: read %q, %v", name, got, err)
		}
		if err := n.client.Delete(n.ctx(), "b"); err != nil {
			t.Fatal(err)
		}
	}
}
