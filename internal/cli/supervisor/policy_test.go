package supervisor

import (
	"math"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/launch"
	"berth/internal/manifest"
)

// found are containers by name: -1 runs, -2 was only created, others are exit codes.
func found(codes map[string]int32) map[string]*launch.Found {
	all := map[string]*launch.Found{}
	for name, code := range codes {
		status := &cri.ContainerStatus{State: cri.ContainerState_CONTAINER_EXITED, ExitCode: code,
			FinishedAt: int64(len(name))}
		switch code {
		case -1:
			status.State = cri.ContainerState_CONTAINER_RUNNING
		case -2:
			status.State = cri.ContainerState_CONTAINER_CREATED
		}
		all[name] = &launch.Found{Container: &launch.Container{Name: name}, Status: status}
	}
	return all
}

func TestAPodIsOverWhenNothingOfItIsStartedAgain(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	for what, c := range map[string]struct {
		policy corev1.RestartPolicy
		lost   bool // the sandbox
		found  map[string]int32
		over   bool
		code   int32
	}{
		"nothing began":                     {"Never", false, nil, false, 0},
		"nothing began, without a sandbox":  {"Never", true, nil, false, 0},
		"both run":                          {"Never", false, map[string]int32{"a": -1, "bb": -1}, false, 0},
		"one runs":                          {"Never", false, map[string]int32{"a": 0, "bb": -1}, false, 0},
		"both ended well":                   {"Never", false, map[string]int32{"i": 0, "a": 0, "bb": 0, "s": -1}, true, 0},
		"the first that failed":             {"Never", false, map[string]int32{"a": 3, "bb": 4}, true, 3},
		"one began":                         {"Never", false, map[string]int32{"a": 0}, false, 0},
		"one began, without a sandbox":      {"Never", true, map[string]int32{"a": 0}, true, 1},
		"the init container failed":         {"Never", false, map[string]int32{"i": 7}, true, 7},
		"the init container is run again":   {"OnFailure", false, map[string]int32{"i": 7}, false, 0},
		"failures are started again":        {"OnFailure", true, map[string]int32{"a": 255, "bb": 0}, false, 0},
		"both ended well, OnFailure":        {"OnFailure", true, map[string]int32{"a": 0, "bb": 0}, true, 0},
		"always":                            {"Always", true, map[string]int32{"a": 0, "bb": 0}, false, 0},
		"created and never started, Always": {"Always", true, map[string]int32{"a": -2}, false, 0},
	} {
		pod := &manifest.Pod{Pod: &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: c.policy,
			InitContainers: []corev1.Container{{Name: "i"}, {Name: "s", RestartPolicy: &always}},
			Containers:     []corev1.Container{{Name: "a"}, {Name: "bb"}}}}}
		state := &State{Created: time.Now(), Ready: !c.lost, Found: found(c.found)}
		if over, code := state.Over(pod); over != c.over || code != c.code {
			t.Errorf("%s: %v, %d", what, over, code)
		}
	}
}

func TestAPodIsOverAfterItsDeadlineAndItsRestarts(t *testing.T) {
	seconds := int64(5)
	pod := &manifest.Pod{Pod: &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: "OnFailure",
		ActiveDeadlineSeconds: &seconds, Containers: []corev1.Container{{Name: "a"}}}}}
	state := &State{Created: time.Now().Add(-4 * time.Second), Ready: true, Found: found(map[string]int32{"a": 3})}
	if over, _ := state.Over(pod); over {
		t.Error("it is over before its deadline")
	}
	state.Found["a"].Attempt, pod.Restarts = 2, &manifest.RestartLimit{Most: 2}
	if over, code := state.Over(pod); !over || code != 3 {
		t.Errorf("after two restarts of two: %v, %d", over, code)
	}
	pod.Restarts, state.Created = nil, time.Now().Add(-6*time.Second)
	if over, code := state.Over(pod); !over || code != 1 {
		t.Errorf("after its deadline: %v, %d", over, code)
	}
}

// TestADeadlineIsOfPodsThatHaveNotEnded: a Job that was complete before its pod's deadline ran again once `berth apply`
// was started after that. Seen to fail where the deadline came first, and where the end of a sidecar counted.
func TestADeadlineIsOfPodsThatHaveNotEnded(t *testing.T) {
	seconds, always := int64(60), corev1.ContainerRestartPolicyAlways
	made := time.Now().Add(-time.Hour)
	for what, c := range map[string]struct {
		policy         corev1.RestartPolicy
		code           int32
		after, sidecar time.Duration // when they ended
		want           int32
	}{
		"ended well":                   {"Never", 0, 10 * time.Second, 10 * time.Second, 0},
		"ended well, and then stopped": {"OnFailure", 0, 10 * time.Second, 61 * time.Second, 0},
		"failed":                       {"Never", 3, 59 * time.Second, 10 * time.Second, 3},
		"at the deadline":              {"Never", 0, 60 * time.Second, 10 * time.Second, 1},
		"killed by the deadline":       {"Never", 137, 61 * time.Second, 10 * time.Second, 1},
		"failed, to be run again":      {"OnFailure", 3, 10 * time.Second, 10 * time.Second, 1},
		"ended well, to be run again":  {"Always", 0, 10 * time.Second, 10 * time.Second, 1},
		"running":                      {"Never", -1, 0, 0, 1},
	} {
		pod := &manifest.Pod{Pod: &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: c.policy, ActiveDeadlineSeconds: &seconds,
			InitContainers: []corev1.Container{{Name: "s", RestartPolicy: &always}},
			Containers:     []corev1.Container{{Name: "a"}}}}}
		state := &State{Created: made, Ready: true, Found: found(map[string]int32{"a": c.code, "s": 0})}
		state.Found["a"].Status.FinishedAt = made.Add(c.after).UnixNano()
		state.Found["s"].Status.FinishedAt = made.Add(c.sidecar).UnixNano()
		if over, code := state.Over(pod); !over || code != c.want {
			t.Errorf("%s: %v, %d, want %d", what, over, code, c.want)
		}
	}
}

// TestADeadlineMayBeFarAway. Seen to fail where 10000000000 seconds after the pod's start had passed.
func TestADeadlineMayBeFarAway(t *testing.T) {
	for seconds, want := range map[int64]bool{59: true, 61: false, math.MaxInt32: false, 10_000_000_000: false} {
		pod := &manifest.Pod{Pod: &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: "Never", ActiveDeadlineSeconds: &seconds,
			Containers: []corev1.Container{{Name: "a"}}}}}
		state := &State{Created: time.Now().Add(-time.Minute), Ready: true, Found: found(map[string]int32{"a": -1})}
		if over, _ := state.Over(pod); over != want {
			t.Errorf("a minute after the start, %d seconds are over: %v", seconds, over)
		}
	}
}
