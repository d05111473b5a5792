package record

import (
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
)

// SandboxPhase is the state of a pod sandbox in its record. The CRI knows only ready and not ready.
type SandboxPhase string

const (
	SandboxCreating SandboxPhase = "creating" // its parts are being made; no client knows its ID
	SandboxReady    SandboxPhase = "ready"
	SandboxBroken   SandboxPhase = "broken"  // a part, such as a namespace or its init, is lost
	SandboxStopped  SandboxPhase = "stopped" // it holds nothing but its record and its containers' records
	SandboxRemoving SandboxPhase = "removing"
)

// ContainerPhase is the state of a container in its record.
type ContainerPhase string

const (
	ContainerCreating ContainerPhase = "creating" // its parts are being made; no client knows its ID
	ContainerCreated  ContainerPhase = "created"
	ContainerStarting ContainerPhase = "starting" // the keeper was asked to run it
	ContainerRunning  ContainerPhase = "running"
	ContainerExited   ContainerPhase = "exited"
	ContainerRemoving ContainerPhase = "removing"
)

// The legal changes of phase. A phase may always be set again to itself.
var (
	sandboxNext = map[SandboxPhase][]SandboxPhase{
		SandboxCreating: {SandboxReady, SandboxRemoving},
		SandboxReady:    {SandboxBroken, SandboxStopped, SandboxRemoving},
		SandboxBroken:   {SandboxReady, SandboxStopped, SandboxRemoving}, // ready again: StartSandbox
		SandboxStopped:  {SandboxRemoving},
	}
	containerNext = map[ContainerPhase][]ContainerPhase{
		ContainerCreating: {ContainerCreated, ContainerRemoving},
		ContainerCreated:  {ContainerStarting, ContainerRemoving},
		// Created again: the start was cut off before the container's program began.
		ContainerStarting: {ContainerRunning, ContainerExited, ContainerRemoving, ContainerCreated},
		ContainerRunning:  {ContainerExited, ContainerRemoving},
		ContainerExited:   {ContainerRemoving},
	}
)

// lasts tells whether a sandbox may stay in a phase. When such a phase begins, both files of the record are written.
func (p SandboxPhase) lasts() bool { return p != SandboxCreating && p != SandboxRemoving }

// lasts tells whether a container may stay in a phase.
func (p ContainerPhase) lasts() bool {
	return p != ContainerCreating && p != ContainerStarting && p != ContainerRemoving
}

// checkPhase refuses a change of phase that is not in next, with errdefs.ErrFailedPrecondition.
func checkPhase[P ~string](next map[P][]P, object string, from, to P) error {
	if from == to || slices.Contains(next[from], to) {
		return nil
	}
	return fmt.Errorf("%s is %s and cannot become %s: %w", object, from, to, errdefs.ErrFailedPrecondition)
}
