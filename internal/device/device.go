package device

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"k8s.io/apimachinery/pkg/util/validation"
)

// MaxID is the longest ID of a device that is taken, in bytes. The protocol says 63, which no kubelet holds plugins to.
const MaxID = 1024

// Device is one device of a resource.
type Device struct {
	ID      string
	Healthy bool
	// NUMA are the nodes that it is close to; none: it is close to all alike, or nobody knows.
	NUMA []int64
}

// CheckResource refuses names that no extended resource may have: one is a qualified name with a domain that is not
// Kubernetes' own, as vendor.com/gpu.
func CheckResource(name string) error {
	domain, _, qualified := strings.Cut(name, "/")
	switch {
	case !qualified:
		return fmt.Errorf("resource name %q has no domain before it, as in vendor.com/gpu: %w",
			name, errdefs.ErrInvalidArgument)
	case domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io"):
		return fmt.Errorf("resource name %q is in a domain of Kubernetes: %w", name, errdefs.ErrInvalidArgument)
	case strings.HasPrefix(name, "requests."):
		return fmt.Errorf("resource name %q begins with requests., which quotas use: %w", name, errdefs.ErrInvalidArgument)
	}
	// A quota puts requests. before it, and that has to be a name too.
	if problems := validation.IsQualifiedName("requests." + name); len(problems) > 0 {
		return fmt.Errorf("resource name %q is not a qualified name: %s: %w", name, strings.Join(problems, "; "),
			errdefs.ErrInvalidArgument)
	}
	return nil
}
