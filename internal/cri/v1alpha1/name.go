package v1alpha1

import (
	"github.com/google/uuid"

	"berth/internal/cri/request"
	"berth/internal/model"
)

// Labels by which a kubelet says what its pods and containers are.
const (
	podName       = "io.kubernetes.pod.name"
	podNamespace  = "io.kubernetes.pod.namespace"
	podUID        = "io.kubernetes.pod.uid"
	containerName = "io.kubernetes.container.name"
)

// podMetadata is what a pod that is called name is to those who know metadata. Pods of one name are attempts
// of one pod.
func podMetadata(name string, labels map[string]string) model.SandboxMetadata {
	return model.SandboxMetadata{
		Name:      labelled(labels, podName, name),
		Namespace: labelled(labels, podNamespace, "default"),
		UID:       labelled(labels, podUID, uuid.NewSHA1(uuid.NameSpaceOID, []byte("berth/"+name)).String()),
	}
}

// labelled is the value of a label, or another where that is no name.
func labelled(labels map[string]string, key, otherwise string) string {
	value := labels[key]
	var c request.Check
	if c.Name("", value); c.Err() != nil {
		return otherwise
	}
	return value
}
