package pod

import (
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"berth/internal/model"
)

// checkNamespaces refuses namespaces of a container that are not its pod's, where only those of the pod are possible.
func checkNamespaces(cfg *model.ContainerConfig, pod *model.SandboxConfig) error {
	own, of := cfg.Security.Namespaces.User, pod.UserNamespace()
	if own == nil || sameUserNamespace(own, of) {
		return nil
	}
	return model.FieldContainerUserNamespace.Wrong(fmt.Errorf(
		"it differs from the pod's, and a pod has one user namespace for all of its containers: %w",
		errdefs.ErrInvalidArgument))
}

// sameUserNamespace tells whether what a container asks for is what its pod has; nil: the pod has the node's.
func sameUserNamespace(own, pods *model.UserNamespace) bool {
	if own.Mode == model.NamespaceNode || pods == nil {
		return own.Mode == model.NamespaceNode && pods == nil
	}
	return slices.Equal(own.UIDs, pods.UIDs) && slices.Equal(own.GIDs, pods.GIDs)
}
