package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"reflect"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Group is the pods of one document.
type Group struct {
	Owner Owner
	File  string // that the document is in
	Pods  []*Pod // those of a Job are the ones with which it begins
	// Ordered says that each pod is started when the one before is ready.
	Ordered bool
	Job     *Job // nil for other kinds
}

// maxName is the longest name of a pod that a controller makes: it is a label and a host name as well.
const maxName = 63

// generate adds a random suffix to a name, as an API server does for generateName.
func generate(base string) string {
	return base[:min(len(base), maxName-suffixLength)] + rand.String(suffixLength)
}

// workload is a document with a template of pods.
type workload struct {
	d        *decoder
	owner    Owner
	template *corev1.PodTemplateSpec
}

// workload checks what all workloads have in common. fields are those of the document that are supported, beside its
// template.
func (d *decoder) workload(object metav1.Object, kind string, selector *metav1.LabelSelector,
	template *corev1.PodTemplateSpec, fields tree) (*workload, error) {
	if d.options.Name != "" {
		object.SetName(d.options.Name)
	}
	if object.GetNamespace() == "" {
		object.SetNamespace(metav1.NamespaceDefault)
	}
	w := &workload{d: d, template: template,
		owner: Owner{Kind: kind, Namespace: object.GetNamespace(), Name: object.GetName()}}
	var c checks
	c.syntax("metadata.name", object.GetName(), validation.IsDNS1123Subdomain(object.GetName()))
	c.syntax("metadata.namespace", object.GetNamespace(), validation.IsDNS1123Label(object.GetNamespace()))
	var unsupported []string
	walk(reflect.ValueOf(object).Elem(), fields, "", "", &unsupported)
	for _, field := range unsupported {
		if !d.options.IgnoreUnsupported {
			c.add(field, "is not supported")
			continue
		}
		d.notes = append(d.notes, fmt.Sprintf("%s %s: %s is not supported and ignored", kind, object.GetName(), field))
	}
	if selector != nil {
		match, err := metav1.LabelSelectorAsSelector(selector)
		switch {
		case err != nil:
			c.add("spec.selector", "%v", err)
		case !match.Matches(labels.Set(template.Labels)):
			c.add("spec.selector", "does not select the labels of spec.template.metadata.labels")
		}
	}
	return w, errors.Join(c.errs...)
}

// wrap names the document in an error.
func (w *workload) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", w.owner.Kind, w.owner.Name, err)
}

// pod makes a pod of the template. generated says that its name is random. edit changes it before it is checked.
func (w *workload) pod(name string, generated bool, edit func(*corev1.Pod)) (*Pod, error) {
	template := w.template.DeepCopy()
	pod := &Pod{objects: w.d.objects, Owner: w.owner, Generated: generated, Pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.owner.Namespace, Labels: template.Labels,
			Annotations: template.Annotations},
		Spec: template.Spec,
	}}
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	if edit != nil {
		edit(pod.Pod)
	}
	finished, err := finish(pod, w.d.options)
	var unsupported *UnsupportedError
	if errors.As(err, &unsupported) {
		for i, field := range unsupported.Fields {
			unsupported.Fields[i] = "spec.template." + field
		}
		unsupported.Pod = w.owner.Name
		return nil, unsupported
	}
	if err != nil {
		return nil, fmt.Errorf("spec.template: %w", err)
	}
	return finished, nil
}

// always is the only restart policy of pods that a controller keeps running.
func (w *workload) always() error {
	switch w.template.Spec.RestartPolicy {
	case "", corev1.RestartPolicyAlways:
		w.template.Spec.RestartPolicy = corev1.RestartPolicyAlways
		return nil
	}
	return fmt.Errorf("spec.template.spec.restartPolicy: %q is not Always", w.template.Spec.RestartPolicy)
}

// count is a number of pods, 1 if the document says nothing.
func count(field string, n *int32) (int, error) {
	const most = 1000
	switch {
	case n == nil:
		return 1, nil
	case *n < 0 || *n > most:
		return 0, fmt.Errorf("%s: %d is not in 0-%d", field, *n, most)
	}
	return int(*n), nil
}

// hash names a template, as the label pod-template-hash does.
func (w *workload) hash() (string, error) {
	data, err := json.Marshal(w.template)
	if err != nil {
		return "", err
	}
	sum := fnv.New32a()
	sum.Write(data)
	return rand.SafeEncodeString(strconv.FormatUint(uint64(sum.Sum32()), 10)), nil
}

// replicas adds n pods with names that begin with base.
func (w *workload) replicas(n int, base string, edit func(*corev1.Pod)) error {
	if err := w.always(); err != nil {
		return err
	}
	group := &Group{Owner: w.owner}
	for range n {
		pod, err := w.pod(generate(base), true, edit)
		if err != nil {
			return err
		}
		group.Pods = append(group.Pods, pod)
	}
	w.d.add(group)
	return nil
}

func label(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[key] = value }
}

// workloadFields are the fields of a workload that are supported or change nothing on one node, joined by spaces.
func workloadFields(spec ...string) tree {
	return pathTree("kind apiVersion metadata.name metadata.namespace metadata.labels metadata.annotations metadata.uid "+
		"status spec.selector spec.template", "spec."+strings.Join(spec, " spec."))
}

var (
	deploymentFields = workloadFields("replicas", "strategy", "minReadySeconds", "revisionHistoryLimit",
		"progressDeadlineSeconds")
	replicaSetFields  = workloadFields("replicas", "minReadySeconds")
	daemonSetFields   = workloadFields("updateStrategy", "minReadySeconds", "revisionHistoryLimit")
	statefulSetFields = workloadFields("replicas", "serviceName", "podManagementPolicy", "updateStrategy",
		"revisionHistoryLimit", "minReadySeconds", "ordinals", "volumeClaimTemplates",
		"persistentVolumeClaimRetentionPolicy")
)

func (d *decoder) deployment(data []byte) error {
	var source appsv1.Deployment
	if err := decodeStrict(data, &source); err != nil {
		return err
	}
	w, err := d.workload(&source, "Deployment", source.Spec.Selector, &source.Spec.Template, deploymentFields)
	if err != nil {
		return w.wrap(err)
	}
	n, err := count("spec.replicas", source.Spec.Replicas)
	if err != nil {
		return w.wrap(err)
	}
	hash, err := w.hash()
	if err != nil {
		return w.wrap(err)
	}
	return w.wrap(w.replicas(n, source.Name+"-"+hash+"-", label(appsv1.DefaultDeploymentUniqueLabelKey, hash)))
}

func (d *decoder) replicaSet(data []byte) error {
	var source appsv1.ReplicaSet
	if err := decodeStrict(data, &source); err != nil {
		return err
	}
	w, err := d.workload(&source, "ReplicaSet", source.Spec.Selector, &source.Spec.Template, replicaSetFields)
	if err != nil {
		return w.wrap(err)
	}
	n, err := count("spec.replicas", source.Spec.Replicas)
	if err != nil {
		return w.wrap(err)
	}
	return w.wrap(w.replicas(n, source.Name+"-", nil))
}

// daemonSet has one pod on this node.
func (d *decoder) daemonSet(data []byte) error {
	var source appsv1.DaemonSet
	if err := decodeStrict(data, &source); err != nil {
		return err
	}
	w, err := d.workload(&source, "DaemonSet", source.Spec.Selector, &source.Spec.Template, daemonSetFields)
	if err != nil {
		return w.wrap(err)
	}
	hash, err := w.hash()
	if err != nil {
		return w.wrap(err)
	}
	return w.wrap(w.replicas(1, source.Name+"-", label(appsv1.DefaultDaemonSetUniqueLabelKey, hash)))
}

func (d *decoder) statefulSet(data []byte) error {
	var source appsv1.StatefulSet
	if err := decodeStrict(data, &source); err != nil {
		return err
	}
	w, err := d.workload(&source, "StatefulSet", source.Spec.Selector, &source.Spec.Template, statefulSetFields)
	if err == nil {
		err = w.always()
	}
	if err == nil {
		err = w.stateful(&source.Spec)
	}
	return w.wrap(err)
}

// retention checks when the volumes of a StatefulSet's claims are to be removed.
func (c *checks) retention(path string, policy appsv1.PersistentVolumeClaimRetentionPolicyType) {
	switch policy {
	case "", appsv1.RetainPersistentVolumeClaimRetentionPolicyType:
	case appsv1.DeletePersistentVolumeClaimRetentionPolicyType:
		c.add(path, "Delete is not supported: `berth volume rm` removes volumes")
	default:
		c.add(path, "%q is neither Retain nor Delete", policy)
	}
}

func (w *workload) stateful(spec *appsv1.StatefulSetSpec) error {
	n, err := count("spec.replicas", spec.Replicas)
	if err != nil {
		return err
	}
	var c checks
	switch spec.PodManagementPolicy {
	case "", appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement:
	default:
		c.add("spec.podManagementPolicy", "%q is neither OrderedReady nor Parallel", spec.PodManagementPolicy)
	}
	if r := spec.PersistentVolumeClaimRetentionPolicy; r != nil {
		c.retention("spec.persistentVolumeClaimRetentionPolicy.whenDeleted", r.WhenDeleted)
		c.retention("spec.persistentVolumeClaimRetentionPolicy.whenScaled", r.WhenScaled)
	}
	for i := range spec.VolumeClaimTemplates {
		claim := &spec.VolumeClaimTemplates[i]
		var own checks
		own.claim("spec", claim.Name, &claim.Spec)
		for _, err := range own.errs {
			c.errs = append(c.errs, fmt.Errorf("spec.volumeClaimTemplates[%d].%w", i, err))
		}
	}
	first := 0
	if spec.Ordinals != nil {
		first = int(spec.Ordinals.Start)
	}
	if first < 0 {
		c.add("spec.ordinals.start", "%d is negative", first)
	}
	if err := errors.Join(c.errs...); err != nil {
		return err
	}
	group := &Group{Owner: w.owner, Ordered: spec.PodManagementPolicy != appsv1.ParallelPodManagement}
	for i := range n {
		pod, err := w.pod(fmt.Sprintf("%s-%d", w.owner.Name, first+i), false, func(p *corev1.Pod) {
			identify(p, spec, first+i)
		})
		if err != nil {
			return err
		}
		group.Pods = append(group.Pods, pod)
	}
	w.d.add(group)
	return nil
}

// identify gives a pod of a StatefulSet its labels, host name and claims. A claim replaces a volume of its name.
func identify(p *corev1.Pod, spec *appsv1.StatefulSetSpec, ordinal int) {
	p.Labels[appsv1.StatefulSetPodNameLabel] = p.Name
	p.Labels[appsv1.PodIndexLabel] = strconv.Itoa(ordinal)
	p.Spec.Hostname = p.Name
	for _, claim := range spec.VolumeClaimTemplates {
		volume := corev1.Volume{Name: claim.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name + "-" + p.Name}}}
		replaced := false
		for i := range p.Spec.Volumes {
			if p.Spec.Volumes[i].Name == claim.Name {
				p.Spec.Volumes[i], replaced = volume, true
			}
		}
		if !replaced {
			p.Spec.Volumes = append(p.Spec.Volumes, volume)
		}
	}
}
