package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Applied is the directory of manifests that keeps a pod running, and what the pod was made from.
type Applied struct {
	Directory string // its absolute path
	File      string // the name of the file in it
	Hash      string // Pod.Hash
}

// annotate writes the annotations of a sandbox. The manifest cannot set them: a pod that no directory keeps running has
// none.
func (a *Applied) annotate(annotations map[string]string) {
	for _, key := range []string{AnnotationApplied, AnnotationFile, AnnotationHash} {
		delete(annotations, key)
	}
	if a != nil {
		annotations[AnnotationApplied], annotations[AnnotationFile], annotations[AnnotationHash] = a.Directory, a.File, a.Hash
	}
}

// As is the same pod under another name and UID: those of one that was made of its document before.
func (p *Pod) As(name, uid string) *Pod {
	object, renamed := *p.Pod, *p
	object.Name, object.UID = name, types.UID(uid)
	renamed.Pod = &object
	return &renamed
}

// source is what of a pod's document decides whether the pod has changed. It is taken before defaults are filled in, so
// that a newer version with other defaults replaces no pod.
type source struct {
	Name        string            `json:"name,omitempty"` // unless it is generated
	Namespace   string            `json:"namespace,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Spec        corev1.PodSpec    `json:"spec"`
}

// keepSource keeps what Hash is computed from.
func (p *Pod) keepSource() (err error) {
	kept := source{Namespace: p.Namespace, Labels: p.Labels, Annotations: p.Annotations, Spec: p.Spec}
	if kept.Namespace == "" {
		kept.Namespace = corev1.NamespaceDefault
	}
	if !p.Generated {
		kept.Name = p.Name
	}
	p.source, err = json.Marshal(kept)
	return err
}

// Hash tells a pod from one whose document was changed: it covers the document's name, labels, annotations and spec,
// and the ConfigMaps and Secrets that these refer to.
func (p *Pod) Hash() (string, error) {
	type used struct {
		Kind, Name string
		Data       map[string][]byte
	}
	var all []used
	add := func(kind, name string) {
		if slices.ContainsFunc(all, func(u used) bool { return u.Kind == kind && u.Name == name }) {
			return
		}
		if found := p.objects.find(kind, p.Namespace, name); found != nil {
			all = append(all, used{kind, name, found.data})
		}
	}
	for _, ref := range p.references() {
		add(ref.kind, ref.name)
	}
	for _, ref := range p.Spec.ImagePullSecrets {
		add(kindSecret, ref.Name)
	}
	objects, err := json.Marshal(all)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	sum.Write(p.source)
	sum.Write([]byte{0})
	sum.Write(objects)
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// Hash tells a Job from one whose document was changed.
func (j *Job) Hash() (string, error) {
	first, err := j.Pod(0)
	if err != nil {
		return "", err
	}
	pod, err := first.Hash()
	if err != nil {
		return "", err
	}
	spec := *j
	spec.w = nil
	data, err := json.Marshal(struct {
		Job
		Pod string
	}{spec, pod})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}
