package v1

import (
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
)

// Enums of the interface and the model's words for them. A request's enums are in range once newCheck has seen it; an
// unknown word of the model becomes the value that promises least.

var protocols = map[api.Protocol]model.Protocol{
	api.Protocol_TCP:  model.TCP,
	api.Protocol_UDP:  model.UDP,
	api.Protocol_SCTP: model.SCTP,
}

var propagations = map[api.MountPropagation]model.Propagation{
	api.MountPropagation_PROPAGATION_PRIVATE:           model.PropagationPrivate,
	api.MountPropagation_PROPAGATION_HOST_TO_CONTAINER: model.PropagationHostToContainer,
	api.MountPropagation_PROPAGATION_BIDIRECTIONAL:     model.PropagationBidirectional,
}

var namespaceModes = map[api.NamespaceMode]model.NamespaceMode{
	api.NamespaceMode_POD:       model.NamespacePod,
	api.NamespaceMode_CONTAINER: model.NamespaceContainer,
	api.NamespaceMode_NODE:      model.NamespaceNode,
	api.NamespaceMode_TARGET:    model.NamespaceTarget,
}

var profileTypes = map[api.SecurityProfile_ProfileType]model.ProfileType{
	api.SecurityProfile_RuntimeDefault: model.ProfileRuntimeDefault,
	api.SecurityProfile_Unconfined:     model.ProfileUnconfined,
	api.SecurityProfile_Localhost:      model.ProfileLocalhost,
}

var sandboxStates = map[api.PodSandboxState]model.SandboxState{
	api.PodSandboxState_SANDBOX_READY:    model.SandboxReady,
	api.PodSandboxState_SANDBOX_NOTREADY: model.SandboxNotReady,
}

var eventTypes = map[api.ContainerEventType]model.ContainerEventType{
	api.ContainerEventType_CONTAINER_CREATED_EVENT: model.EventCreated,
	api.ContainerEventType_CONTAINER_STARTED_EVENT: model.EventStarted,
	api.ContainerEventType_CONTAINER_STOPPED_EVENT: model.EventStopped,
	api.ContainerEventType_CONTAINER_DELETED_EVENT: model.EventDeleted,
}

var (
	propagationsOut   = inverse(propagations)
	protocolsOut      = inverse(protocols)
	profileTypesOut   = inverse(profileTypes)
	namespaceModesOut = inverse(namespaceModes)
	sandboxStatesOut  = inverse(sandboxStates)
	eventTypesOut     = inverse(eventTypes)
)

func inverse[K, V comparable](m map[K]V) map[V]K {
	out := make(map[V]K, len(m))
	for k, v := range m {
		out[v] = k
	}
	return out
}

func fromSandboxState(s model.SandboxState) api.PodSandboxState {
	if v, ok := sandboxStatesOut[s]; ok {
		return v
	}
	return api.PodSandboxState_SANDBOX_NOTREADY
}
