package client_test

import (
	"context"
	"fmt"
	"math/rand"
	"strings"
	"testing"
	"time"

	keeper "berth/internal/keeper/client"
)

// TestADeletedContainerOfARunThatWasCutOffStaysDeleted: whoever stops waiting for a start deletes the container, and
// nothing may start afterwards. The keeper handles the two calls at the same time, the second one first at times. Seen
// to fail without the nonces that Delete withdraws: 85 of 400 containers ran.
func TestADeletedContainerOfARunThatWasCutOffStaysDeleted(t *testing.T) {
	n := start(t)
	cut := 0
	for i := range 400 {
		id := fmt.Sprint("c", i)
		ctx, cancel := context.WithCancel(n.ctx())
		time.AfterFunc(time.Duration(rand.Intn(1000))*time.Microsecond, cancel)
		if _, err := n.client.Run(ctx, n.request(id, "sleep", "1000")); err != nil {
			cut++
		}
		cancel()
		if err := n.client.Delete(n.ctx(), id); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(300 * time.Millisecond) // a start takes some ms
	list, err := n.client.List(n.ctx())
	if err != nil || len(list) > 0 {
		t.Errorf("after %d runs that were cut off, %d containers are there: %v", cut, len(list), err)
	}
	if cut == 0 {
		t.Error("no run was cut off")
	}
}

// TestAnExecThatWasCutOffDoesNotRunLater: the same of an exec, whose caller ends it when it stops waiting.
func TestAnExecThatWasCutOffDoesNotRunLater(t *testing.T) {
	n := start(t)
	n.run(n.request("a", "sleep", "1000"))
	for i := range 200 {
		ctx, cancel := context.WithCancel(n.ctx())
		time.AfterFunc(time.Duration(rand.Intn(1000))*time.Microsecond, cancel)
		if _, err := n.client.Exec(ctx, &keeper.ExecRequest{
			ContainerID: "a", ExecID: fmt.Sprint("e", i), Process: n.process("sleep", "2000"),
		}); err == nil {
			if err := n.client.KillExec(n.ctx(), "a", fmt.Sprint("e", i)); err != nil {
				t.Error(err)
			}
		}
		cancel()
	}
	n.until("no exec runs", func() bool {
		ps, _ := n.exec("a", 0, "ps", "-o", "args")
		return !strings.Contains(ps, "sleep 2000")
	})
}
