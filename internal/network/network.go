package network

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"

	"berth/internal/metrics"
	"berth/internal/model"
)

// Pod is a pod as the network sees it.
type Pod struct {
	ID, Name, Namespace, UID string
	NetNS                    string // path of the pinned network namespace; empty: the pod is in the node's network
	Ports                    []model.PortMapping
	Labels, Annotations      map[string]string
	CgroupParent             string
	DNS                      *model.DNS
	// Sysctls are those of the pod's interface, which the caller sets after Setup. The built-in bridge sets them again
	// where it makes an interface that was lost again.
	Sysctls map[string]string
	// Before is the network that the pod had until it was lost: its addresses are asked for again, and a network
	// that gives others fails. For Reconcile it is the network that the pod has, as far as its record says.
	Before *Result
}

// Result is the network that a pod got.
type Result struct {
	IPs       []netip.Addr    // the first is the primary one
	Interface string          // in the pod
	CNI       json.RawMessage // the plugins' result; nil with the bridge
}

// Status tells whether pods can be set up. Reason is a word for machines, Message says more; it may say something
// where Ready is true.
type Status struct {
	Ready           bool
	Reason, Message string
}

// Provider sets up the network of pods. Calls for different pods may run at once.
type Provider interface {
	// Setup is all or nothing. A pod that was set up before gets the same addresses with the bridge. Errors:
	// ErrInvalidArgument (a port, a host IP), ErrFailedPrecondition (a host port is taken: by whom, is said),
	// ErrResourceExhausted (no address left), ErrUnavailable (neither CNI nor the bridge works).
	Setup(ctx context.Context, pod *Pod) (*Result, error)
	// Expect says that a pod comes soon, and returns at once: what pods have in common is made meanwhile, where it is not
	// there. An error is that of the Setup that follows.
	Expect(ctx context.Context)
	// Prepare sets up as much of the network of a pod as does not depend on the pod, before there is a pod: its ID and its
	// network namespace are all that is known. Setup of a pod with that ID does the rest. Until then Teardown of the ID
	// removes it, and so does Reconcile, and it holds nothing that a pod needs: what it has is given to one.
	Prepare(ctx context.Context, pod *Pod) error
	// Teardown is idempotent, and works when the namespace is gone and after a crash in the middle of Setup. It needs
	// the pod's ID only.
	Teardown(ctx context.Context, pod *Pod) error
	// Forget is Teardown for a pod that its client wants to be gone, and that never got its network. If CNI plugins have
	// not joined the pod, and fail to take it out of the network, that is logged, and they are not asked again.
	Forget(ctx context.Context, pod *Pod) error
	// NeedsNetNS tells whether a Teardown is to come before the pod's network namespace goes: CNI plugins were asked to
	// join the pod, and have not taken it out yet. Without the namespace they leave addresses, devices of the node and
	// rules behind.
	NeedsNetNS(id string) bool
	// Leave is called for a pod that is to get a new network namespace, and its addresses again, before the old namespace
	// goes. CNI plugins take the pod out of the network. The bridge keeps its addresses.
	Leave(ctx context.Context, id string) error
	Status(ctx context.Context) Status
	// Reconcile removes the networks of pods that are gone, except for the resources of CNI plugins (see Collect), and
	// repairs the networks of live pods. live must have every pod that is set up or being set up, and those that only
	// keep their addresses. A lost record of a network is made again. lost has the pods, by ID, whose network is gone
	// with its record, and the reason.
	Reconcile(ctx context.Context, live []*Pod) (lost map[string]error, err error)
	// Collect makes plugins release the resources of pods that Reconcile was not given. It may take long, because plugins
	// may need the cluster's API server, and is called again if it fails. Pods may be set up meanwhile. Only one call
	// at a time is allowed.
	Collect(ctx context.Context) error
	// SetPodCIDR takes the range that the cluster gives to the node: one prefix, or one of each family with a comma
	// between. The bridge uses it from when no pod has an address of another; a CNI plugin that asks for the ipRanges
	// capability is offered it for new pods.
	SetPodCIDR(ctx context.Context, cidr string) error
	// Purge removes what pods have in common (the bridge, its table) at once; ErrFailedPrecondition while there are pods.
	Purge(ctx context.Context) error
	// Close leaves the pods' networks as they are. Where there is no pod, nothing of the bridge is left.
	Close() error
}

// Config says which network pods get.
type Config struct {
	CNIConfDir string   // followed; empty: no CNI
	CNIBinDirs []string // default: /opt/cni/bin, /usr/lib/cni and /usr/libexec/cni
	CNINetwork string   // name of the network; empty: the lexically first file's
	RequireCNI bool     // without a file in CNIConfDir there is no network, rather than the bridge
	// RequirePodCIDR: before the first SetPodCIDR there is no network, rather than the bridge with a range of its own.
	RequirePodCIDR bool
	CNICacheDir    string         // default: a directory under StateDir
	StateDir       string         // for records, on disk as long as the node's data
	Bridge         string         // default: berth0
	PodCIDRs       []netip.Prefix // at most one of each family; default: chosen from private ranges that are free
	// NonMasquerade are ranges that packets of the built-in bridge's pods go to with the pod's own address.
	NonMasquerade []netip.Prefix
	MTU           int // default: of the interface of the node's default route
	Logger        *slog.Logger
	Metrics       *metrics.Set // nil: nothing is counted
}
