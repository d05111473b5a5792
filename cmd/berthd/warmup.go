package main

import (
	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/codec"
	keeper "berth/internal/keeper/client"
	"berth/internal/pod/record"
)

// warmUp looks at the types of the first pod before that comes.
func warmUp() {
	codec.Messages(&cri.RunPodSandboxRequest{}, &cri.RunPodSandboxResponse{}, &cri.CreateContainerRequest{},
		&cri.CreateContainerResponse{}, &cri.StartContainerRequest{}, &cri.StartContainerResponse{})
	codec.JSON(record.Sandbox{}, record.Container{}, specs.Spec{})
	keeper.WarmUp()
}
