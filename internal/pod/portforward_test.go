package pod

import (
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// A client that still says something is not cut off, however long that takes.
func TestTheEndOfAForwardedConnectionWaitsForSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		client := &counted{Reader: theirs}
		go func() {
			buf := make([]byte, 1)
			for {
				if _, err := client.Read(buf); err != nil {
					return
				}
			}
		}()
		go func() {
			for range 10 {
				time.Sleep(lastWords - lastWords/10)
				_, _ = ours.Write([]byte("x"))
			}
		}()
		began := time.Now()
		client.waitForSilence(nil)
		spoke := 10 * (lastWords - lastWords/10)
		if took := time.Since(began); took < spoke || took > spoke+2*lastWords {
			t.Errorf("it ended after %v of %v", took, spoke)
		}
		ours.Close()
		ended := make(chan struct{})
		close(ended)
		before := time.Now()
		client.waitForSilence(ended)
		if took := time.Since(before); took != 0 {
			t.Errorf("a client that has ended its side: it took %v", took)
		}
	})
}
