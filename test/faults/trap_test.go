package faults

import (
	"math/rand"
	"sync"
	"time"
)

// call is a kind of call that a kill is timed to.
type call string

const (
	callRunPod call = "run a pod"
	callCreate call = "create"
	callStart  call = "start"
	callExec   call = "exec"
	callStop   call = "stop"
	callRemove call = "remove"
	callPull   call = "pull"
)

var calls = []call{callRunPod, callCreate, callStart, callExec, callStop, callRemove, callPull}

// trap tells when the next call of a kind begins, and at what moment within it something is to be killed.
type trap struct {
	mu     sync.Mutex // guards what follows
	armed  call
	sprung chan struct{}
	took   map[call]time.Duration // a moving mean
}

// pass is made by each call as it begins, and returns what it has to do when it has ended.
func (t *trap) pass(kind call) (ended func()) {
	began := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.armed == kind {
		close(t.sprung)
		t.armed = ""
	}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.took == nil {
			t.took = map[call]time.Duration{}
		}
		t.took[kind] = (3*t.took[kind] + time.Since(began)) / 4
	}
}

// wait returns at a random moment within the next call of the kind, or when there was none for a while.
func (t *trap) wait(r *rand.Rand, kind call) {
	sprung := make(chan struct{})
	t.mu.Lock()
	t.armed, t.sprung = kind, sprung
	within := t.took[kind]
	t.mu.Unlock()
	select {
	case <-sprung:
	case <-time.After(time.Second / 2):
		t.mu.Lock()
		if t.armed == kind {
			t.armed = ""
		}
		t.mu.Unlock()
	}
	time.Sleep(time.Duration(r.Int63n(int64(within+time.Millisecond) * 5 / 4)))
}
