package apply

import (
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/lookup"
	"berth/internal/manifest"
)

// wanted is a pod that the directory describes.
type wanted struct {
	pod  *manifest.Pod
	hash string
	// before is the pod that has to be ready before this one is started; nil: there is none.
	before *wanted
}

// present is a pod of the directory that is there, or that is being started.
type present struct {
	name  string // namespace/name
	owner string
	hash  string
	file  string
	ready bool
	// sandbox is nil where there is none yet or any more, and keeper where nothing in this command keeps the pod.
	sandbox *cri.PodSandbox
	keeper  *keeper
}

// newPresent describes a pod of the directory by its sandbox.
func newPresent(sandbox *cri.PodSandbox) *present {
	annotations := sandbox.GetAnnotations()
	return &present{
		name:    lookup.PodName(sandbox),
		owner:   annotations[manifest.AnnotationOwner],
		hash:    annotations[manifest.AnnotationHash],
		file:    annotations[manifest.AnnotationFile],
		ready:   sandbox.GetState() == cri.PodSandboxState_SANDBOX_READY,
		sandbox: sandbox,
	}
}

// plan is what makes the pods that are present those that are wanted.
type plan struct {
	keep  map[*wanted]*present
	start []*wanted
	stop  []*present
	// blocked are pods whose names others have that stay, since their file is wrong.
	blocked []*wanted
}

// makePlan compares what is wanted with what is present. A pod whose name is generated is any of its document and hash,
// since each reading of the document makes another name. frozen are the files whose pods stay, whatever is wanted.
func makePlan(want []*wanted, have []*present, frozen map[string]bool) *plan {
	p := &plan{keep: map[*wanted]*present{}}
	taken := map[*present]bool{}
	for _, w := range want {
		var best *present
		for _, h := range have {
			if !taken[h] && w.is(h) && (best == nil || h.rank() > best.rank()) {
				best = h
			}
		}
		if best != nil {
			p.keep[w], taken[best] = best, true
		}
	}
	stays := map[string]bool{} // names
	for _, h := range have {
		switch {
		case taken[h]:
		case frozen[h.file]:
			stays[h.name] = true
		default:
			p.stop = append(p.stop, h)
		}
	}
	for _, w := range want {
		switch {
		case p.keep[w] != nil:
		case stays[w.pod.FullName()]:
			p.blocked = append(p.blocked, w)
		default:
			p.start = append(p.start, w)
		}
	}
	return p
}

// is says whether a pod that is present is the one that is wanted.
func (w *wanted) is(h *present) bool {
	if w.hash != h.hash {
		return false
	}
	if w.pod.Generated {
		return w.pod.Owner.String() == h.owner
	}
	return w.pod.FullName() == h.name
}

// rank says which of several pods of one document is kept first.
func (h *present) rank() (rank int) {
	if h.keeper != nil {
		rank += 2
	}
	if h.ready {
		rank++
	}
	return rank
}
