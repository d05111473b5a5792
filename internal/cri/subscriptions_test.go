package cri_test

import (
	"testing"

	"google.golang.org/grpc"

	"berth/internal/cri"
	"berth/internal/cri/berthv1"
	"berth/internal/cri/containerd"
	criv1 "berth/internal/cri/v1"
	"berth/internal/cri/v1alpha1"
	"berth/internal/cri/v1alpha2"
)

// ending are the calls with answers of several messages that end by themselves: a stop of berthd waits for them.
var ending = map[string]bool{
	"/berth.v1.Images/Pull": true,
	"/berth.v1.Images/Push": true,
	"/berth.v1.Images/Save": true,
	"/containerd.services.containers.v1.Containers/ListStream": true,
	"/containerd.services.content.v1.Content/List":             true,
	"/containerd.services.content.v1.Content/Read":             true,
	"/runtime.RuntimeService/Exec":                             true,
	"/runtime.v1.ImageService/StreamImages":                    true,
	"/runtime.v1.RuntimeService/StreamContainerStats":          true,
	"/runtime.v1.RuntimeService/StreamContainers":              true,
	"/runtime.v1.RuntimeService/StreamPodSandboxMetrics":       true,
	"/runtime.v1.RuntimeService/StreamPodSandboxStats":         true,
	"/runtime.v1.RuntimeService/StreamPodSandboxes":            true,
	"/runtime.v1alpha2.ImageService/StreamImages":              true,
	"/runtime.v1alpha2.RuntimeService/StreamContainerStats":    true,
	"/runtime.v1alpha2.RuntimeService/StreamContainers":        true,
	"/runtime.v1alpha2.RuntimeService/StreamPodSandboxMetrics": true,
	"/runtime.v1alpha2.RuntimeService/StreamPodSandboxStats":   true,
	"/runtime.v1alpha2.RuntimeService/StreamPodSandboxes":      true,

	// These are refused.
	"/containerd.services.content.v1.Content/Write":      true,
	"/containerd.services.mounts.v1.Mounts/List":         true,
	"/containerd.services.snapshots.v1.Snapshots/List":   true,
	"/containerd.services.streaming.v1.Streaming/Stream": true,
}

// TestAStreamIsASubscriptionOrEndsByItself: one that is in neither list could hold a stop of berthd, and a name that no
// service has would stay unnoticed.
func TestAStreamIsASubscriptionOrEndsByItself(t *testing.T) {
	server := grpc.NewServer()
	criv1.Register(server, criv1.Deps{})
	v1alpha2.Register(server, criv1.Deps{}, nil, nil)
	v1alpha1.Register(server, v1alpha1.Deps{})
	berthv1.Register(server, berthv1.Deps{})
	containerd.New(containerd.Deps{}).Register(server)
	streams := map[string]bool{}
	for service, info := range server.GetServiceInfo() {
		for _, method := range info.Methods {
			if method.IsServerStream {
				streams["/"+service+"/"+method.Name] = true
			}
		}
	}
	for name := range streams {
		if cri.Subscriptions[name] == ending[name] {
			t.Errorf("%s has to be either a subscription, or among those that end by themselves", name)
		}
	}
	for _, list := range []map[string]bool{cri.Subscriptions, ending} {
		for name := range list {
			if !streams[name] {
				t.Errorf("no service streams %s", name)
			}
		}
	}
}
