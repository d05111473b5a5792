package faults

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/faults/tally"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// deaf takes nothing until it is let go; then all.
type deaf struct {
	hear chan struct{}
	nodetest.Buffer
}

func (d *deaf) Write(p []byte) (int, error) {
	<-d.hear
	return d.Buffer.Write(p)
}

// Containers that write as fast as they can have all of it in their logs, whoever is attached and does not read;
// other calls are answered meanwhile; and a client that was cut off is told so. Seen to fail with queues of clients
// that drop what does not fit.
func TestFloodsWithClientsThatDoNotRead(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	c := count(t)
	p := nodetest.RunPod(t, n)
	w := newWitness(t, p)
	c.before(t, n)
	floods, lines := size(3, 10), size(400_000, 1_000_000) // more than sockets and queues hold in memory
	var want strings.Builder
	for i := range lines {
		fmt.Fprintln(&want, i+1)
	}
	type flood struct {
		*nodetest.Container
		client *deaf
		ended  chan error
	}
	var all []*flood
	for range floods {
		// It begins when its client is there.
		f := &flood{p.Run(nodetest.Sh(fmt.Sprintf("until test -e /go; do sleep 0.05; done; seq 1 %d; exit 9", lines))),
			&deaf{hear: make(chan struct{})}, make(chan error, 1)}
		made, err := n.Runtime.Attach(nodetest.Context(t), &cri.AttachRequest{ContainerId: f.ID, Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		ctx := nodetest.Context(t)
		go func() {
			_, err := nodetest.Stream(ctx, nodetest.WebSocket, made.Url, remotecommand.StreamOptions{Stdout: f.client})
			f.ended <- err
		}()
		all = append(all, f)
	}
	time.Sleep(200 * time.Millisecond) // the clients are on their way; one that comes too late has nothing to lose
	for _, f := range all {
		f.Sh("touch /go")
		c.add(tally.Rounds, 1)
	}
	for running := true; running; {
		running = false
		began := time.Now()
		answers(t, n, w)
		c.answered(time.Since(began))
		for _, f := range all {
			running = running || f.Status().State == cri.ContainerState_CONTAINER_RUNNING
		}
	}
	for _, f := range all {
		c.add(tally.Exits, 1)
		if s := f.WaitExit(); s.ExitCode != 9 {
			c.add(tally.ExitsWrong, 1)
			t.Errorf("a flood ended with %d (%s: %s)", s.ExitCode, s.Reason, s.Message)
		}
		c.add(tally.Lines, int64(lines))
		var wrong int64
		var first string
		nodetest.Eventually(t, 40*time.Second, "the log is written", func() error {
			data, err := os.ReadFile(f.LogPath())
			if wrong, first = missing(string(data), lines); err == nil && wrong > 0 &&
				strings.Count(string(data), "\n") < lines {
				err = fmt.Errorf("%d lines are missing: %s", wrong, first)
			}
			return err
		})
		if wrong > 0 {
			c.add(tally.LinesWrong, wrong)
			t.Errorf("%d lines are lost or doubled: %s", wrong, first)
		}
		close(f.client.hear)
		err := <-f.ended
		got := f.client.String()
		c.add(tally.Bytes, int64(len(got)))
		// A client that attached late lacks the first lines, never those in the middle.
		if !strings.Contains(want.String(), got) || err == nil && !strings.HasSuffix(want.String(), got) {
			c.add(tally.BytesWrong, 1)
			t.Errorf("an attach that ended with %v has bytes that are not what was written (%d bytes)", err, len(got))
		}
	}
	w.check(t)
	nothingLeft(t, n)
}

// 10,000 execs run once each, and give all that they write. Seen to fail where the ends of execs are forgotten
// before they are asked for: 2 of 10,000 were not found.
func TestThousandsOfExecs(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	c := count(t)
	dir := t.TempDir()
	p := nodetest.RunPod(t, n)
	w := newWitness(t, p)
	target := p.Run(nodetest.Mounts(&cri.Mount{HostPath: dir, ContainerPath: "/count"}))
	c.before(t, n)
	const workers = 8
	each := size(200, 10_000) / workers
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			for j := range each {
				text := strings.Repeat("x", 100)
				ctx, cancel := context.WithTimeout(context.Background(), node.Patience(2*time.Minute))
				got, err := n.Runtime.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: target.ID, Timeout: 100,
					Cmd: []string{"sh", "-c", fmt.Sprintf("echo %d >>/count/%d; echo %s; exit 5", j, i, text)}})
				cancel()
				c.add(tally.Rounds, 1)
				c.add(tally.Bytes, 101)
				c.add(tally.Exits, 1)
				switch {
				case err != nil:
					t.Errorf("exec: %v", err)
				case got.ExitCode != 5:
					c.add(tally.ExitsWrong, 1)
					t.Errorf("an exec ended with %d: %s", got.ExitCode, got.Stderr)
				case string(got.Stdout) != text+"\n":
					c.add(tally.BytesWrong, 1)
					t.Errorf("an exec wrote %q", got.Stdout)
				}
			}
		})
	}
	wg.Wait()
	for i := range workers {
		data, err := os.ReadFile(dir + "/" + strconv.Itoa(i))
		if err != nil {
			t.Fatal(err)
		}
		var want strings.Builder
		for j := range each {
			fmt.Fprintln(&want, j)
		}
		c.add(tally.Programs, int64(each))
		if string(data) != want.String() {
			c.add(tally.ProgramsWrong, max(1, int64(each-strings.Count(string(data), "\n"))))
			t.Errorf("not every exec of worker %d has run once", i)
		}
	}
	w.check(t)
	nothingLeft(t, n)
}
