package supervisor

import (
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/launch"
	"berth/internal/manifest"
)

// restarts says whether a container that has ended is started again.
func restarts(pod *manifest.Pod, c *corev1.Container, code int32) bool {
	switch pod.RestartPolicy(c) {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return code != 0
	}
	return true
}

// State is what a pod that was found looks like.
type State struct {
	Created time.Time
	Ready   bool // its sandbox
	Found   map[string]*launch.Found
	// Interrupted is when a shutdown of the system began to stop the pod; zero: none did.
	Interrupted time.Time
}

// exitCode is that of a container that has ended. A container that ends without an error because a shutdown of the
// system stops it has not done its work, and counts as one that does not handle SIGTERM.
func (s *State) exitCode(status *cri.ContainerStatus) int32 {
	code := status.GetExitCode()
	if code == 0 && !s.Interrupted.IsZero() && status.GetFinishedAt() >= s.Interrupted.UnixNano() {
		return 128 + int32(unix.SIGTERM)
	}
	return code
}

// Over says whether a pod that was found has ended for good, and with which exit code: nothing of it is to be started
// again.
func (s *State) Over(pod *manifest.Pod) (over bool, code int32) {
	over, code = s.ended(pod)
	if seconds := pod.Spec.ActiveDeadlineSeconds; seconds != nil {
		// A pod whose containers ended before its deadline has not missed it.
		deadline := s.Created.Add(manifest.Seconds(*seconds))
		if !time.Now().Before(deadline) && !(over && s.finished(pod).Before(deadline)) {
			return true, 1
		}
	}
	return over, code
}

// finished is when the last container of the pod ended. Sidecars do not count: they are stopped when the others have
// ended.
func (s *State) finished(pod *manifest.Pod) time.Time {
	last := int64(0)
	for c := range pod.Containers() {
		if found := s.Found[c.Name]; found != nil && pod.Kind(c) != manifest.KindSidecar {
			last = max(last, found.Status.GetFinishedAt())
		}
	}
	return time.Unix(0, last)
}

// ended is Over without the pod's deadline.
func (s *State) ended(pod *manifest.Pod) (over bool, code int32) {
	failures := 0
	for _, found := range s.Found {
		failures += found.Attempt
	}
	final := func(c *corev1.Container, code int32) bool {
		return !restarts(pod, c, code) || pod.Restarts != nil && code != 0 && failures >= pod.Restarts.Most
	}
	var first int64 // when the first container failed
	missing := false
	for c := range pod.Containers() {
		found, kind := s.Found[c.Name], pod.Kind(c)
		if kind == manifest.KindSidecar {
			continue
		}
		status := (*cri.ContainerStatus)(nil)
		if found != nil {
			status = found.Status
		}
		exit := s.exitCode(status)
		switch ended := status.GetState() == cri.ContainerState_CONTAINER_EXITED; {
		case kind == manifest.KindInit:
			if ended && exit != 0 && final(c, exit) {
				return true, exit
			}
		case found == nil || status.GetState() == cri.ContainerState_CONTAINER_CREATED:
			missing = true
		case !ended || !final(c, exit):
			return false, 0
		case exit != 0 && (first == 0 || status.GetFinishedAt() < first):
			first, code = status.GetFinishedAt(), exit
		}
	}
	if !missing {
		return true, code
	}
	// Some containers never began, and cannot any more in a sandbox that is gone. A pod whose containers run once has
	// failed then, as for a kubelet: others of it have run.
	if !s.Ready && pod.Spec.RestartPolicy == corev1.RestartPolicyNever && len(s.Found) > 0 {
		return true, 1
	}
	return false, 0
}
