package pod

import (
	"time"

	"berth/internal/model"
	"berth/internal/pod/record"
	"berth/internal/pod/steps"
)

// measureSteps counts the steps of a call that has made something.
func (m *Manager) measureSteps(call string, timings []steps.Timing) {
	for _, t := range timings {
		m.cfg.Metrics.Step(call, t.Step, t.Took)
	}
}

// CountSandboxes tells how many pods there are in each state.
func (m *Manager) CountSandboxes() map[string]int {
	n := map[string]int{string(model.SandboxReady): 0, string(model.SandboxNotReady): 0}
	for _, s := range m.index.Sandboxes() {
		n[string(s.Status().State)]++
	}
	return n
}

// CountContainers tells how many containers there are in each state.
func (m *Manager) CountContainers() map[string]int {
	n := map[string]int{}
	for _, state := range []model.ContainerState{
		model.ContainerCreated, model.ContainerRunning, model.ContainerPaused, model.ContainerExited, model.ContainerUnknown,
	} {
		n[string(state)] = 0
	}
	for _, c := range m.index.Containers() {
		n[string(c.Status().State)]++
	}
	return n
}

// OldestReadings tells when the oldest readings of a cgroup and of a writable layer were made that the statistics have
// of ready pods and running containers; zero: there is none.
func (m *Manager) OldestReadings() (cgroup, disk time.Time) {
	return m.readings.Sampler.Oldest(func(id string) bool {
		switch s, c := m.index.ByID(id); {
		case c != nil:
			return c.Record().Phase == record.ContainerRunning
		case s != nil:
			return s.Record().Phase == record.SandboxReady
		}
		return false
	})
}
