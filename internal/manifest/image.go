package manifest

import corev1 "k8s.io/api/core/v1"

// KindImage is the kind of the owner of a pod that was made of an image and not of a document.
const KindImage = "Image"

// OfImage is a manifest of one pod that was not read but made, of an image and what to run in it. user is the name of
// its container's user, which a document could not say; empty: none.
func OfImage(pod *corev1.Pod, user string) (*Documents, error) {
	made := &Pod{Pod: pod, User: user, objects: newObjects()}
	if pod.Name == "" {
		pod.Name = generate(pod.GenerateName)
		pod.GenerateName = ""
	}
	made.Owner = Owner{Kind: KindImage, Name: pod.Name}
	if _, err := finish(made, Options{}); err != nil {
		return nil, err
	}
	return &Documents{Groups: []*Group{{Owner: made.Owner, Pods: []*Pod{made}}}}, nil
}
