package manifest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// maxData is how much a ConfigMap or Secret may hold, in bytes: the limit of an API server.
const maxData = 1 << 20

// objects are the ConfigMaps and Secrets of the documents.
type objects struct {
	byKind     map[string]map[string]*object // by kind, then by namespace/name
	namespaces []namespace
}

// namespace is a document of kind Namespace.
type namespace struct{ name, file string }

// object is a ConfigMap or a Secret.
type object struct {
	file   string // that it comes from
	data   map[string][]byte
	binary map[string]bool // keys of a ConfigMap's binaryData, which no variable can have
}

// Kinds of objects that pods refer to.
const (
	kindConfigMap = "ConfigMap"
	kindSecret    = "Secret"
)

func newObjects() *objects {
	return &objects{byKind: map[string]map[string]*object{kindConfigMap: {}, kindSecret: {}}}
}

func (o *objects) find(kind, namespace, name string) *object {
	return o.byKind[kind][namespace+"/"+name]
}

// add checks an object and keeps it.
func (o *objects) add(kind string, meta *metav1.ObjectMeta, made *object) error {
	if meta.Namespace == "" {
		meta.Namespace = metav1.NamespaceDefault
	}
	var c checks
	c.syntax("metadata.name", meta.Name, validation.IsDNS1123Subdomain(meta.Name))
	c.syntax("metadata.namespace", meta.Namespace, validation.IsDNS1123Label(meta.Namespace))
	size := 0
	for key, value := range made.data {
		c.syntax("data."+key, key, validation.IsConfigMapKey(key))
		size += len(value)
	}
	if size > maxData {
		c.add("data", "%d bytes are more than %d", size, maxData)
	}
	full := meta.Namespace + "/" + meta.Name
	if other := o.byKind[kind][full]; other != nil {
		c.add("metadata.name", "%s appears twice%s", full, also(other.file, made.file))
	}
	if err := errors.Join(c.errs...); err != nil {
		return fmt.Errorf("%s %s: %w", kind, meta.Name, err)
	}
	o.byKind[kind][full] = made
	return nil
}

func (d *decoder) configMap(data []byte) error {
	var source corev1.ConfigMap
	if err := decodeStrict(data, &source); err != nil {
		return err
	}
	made := &object{file: d.name, data: map[string][]byte{}, binary: map[string]bool{}}
	for key, value := range source.Data {
		made.data[key] = []byte(value)
	}
	for key, value := range source.BinaryData {
		if _, both := made.data[key]; both {
			return fmt.Errorf("ConfigMap %s: binaryData.%s: the key is in data, too", source.Name, key)
		}
		made.data[key], made.binary[key] = value, true
	}
	return d.objects.add(kindConfigMap, &source.ObjectMeta, made)
}

func (d *decoder) secret(data []byte) error {
	var source corev1.Secret
	if err := decodeStrict(data, &source); err != nil {
		return fmt.Errorf("a Secret: %w", err)
	}
	made := &object{file: d.name, data: map[string][]byte{}}
	maps.Copy(made.data, source.Data)
	for key, value := range source.StringData {
		made.data[key] = []byte(value)
	}
	return d.objects.add(kindSecret, &source.ObjectMeta, made)
}

func (d *decoder) namespace(data []byte) error {
	var source corev1.Namespace
	if err := decodeStrict(data, &source); err != nil {
		return err
	}
	d.objects.namespaces = append(d.objects.namespaces, namespace{source.Name, d.name})
	return nil
}

// reference is a place of a pod that names an object.
type reference struct {
	field    string
	kind     string
	name     string
	keys     []string // that the object must have
	keyField func(int) string
	optional *bool
	// variable: the value of the key is one of a variable, which binaryData cannot be.
	variable bool
}

// PullSecrets are the credentials of the pod's imagePullSecrets, each as a config.json of docker's kind.
func (p *Pod) PullSecrets() [][]byte {
	var all [][]byte
	for _, ref := range p.Spec.ImagePullSecrets {
		found := p.objects.find(kindSecret, p.Namespace, ref.Name)
		if found == nil {
			continue
		}
		if data, ok := found.data[corev1.DockerConfigJsonKey]; ok {
			all = append(all, data)
		}
		if data, ok := found.data[corev1.DockerConfigKey]; ok { // its entries alone
			all = append(all, slices.Concat([]byte(`{"auths":`), data, []byte("}")))
		}
	}
	return all
}

// resolve checks that what the pod refers to is among the documents.
func (p *Pod) resolve(options Options) error {
	var c checks
	for i, ref := range p.Spec.ImagePullSecrets { // a kubelet pulls without it, too
		if p.objects.find(kindSecret, p.Namespace, ref.Name) == nil {
			p.Notes = append(p.Notes, fmt.Sprintf("spec.imagePullSecrets[%d]: there is no Secret %q among the documents; "+
				"images are pulled without it", i, ref.Name))
		}
	}
	for _, ref := range p.references() {
		found := p.objects.find(ref.kind, p.Namespace, ref.name)
		var field, problem string
		if found == nil {
			field = ref.field
			problem = fmt.Sprintf("there is no %s %q in namespace %s among the documents", ref.kind, ref.name, p.Namespace)
		} else {
			for i, key := range ref.keys {
				if _, ok := found.data[key]; !ok {
					field, problem = ref.keyField(i), fmt.Sprintf("%s %s has no key %q", ref.kind, ref.name, key)
				} else if ref.variable && found.binary[key] {
					field = ref.keyField(i)
					problem = fmt.Sprintf("%s %s has key %q in binaryData, which no variable can have", ref.kind, ref.name, key)
				}
			}
		}
		switch {
		case problem == "" || isTrue(ref.optional):
		case options.IgnoreUnsupported:
			p.Warnings = append(p.Warnings, field+": "+problem+"; it is taken as optional")
		default:
			c.add(field, "%s", problem)
		}
	}
	return errors.Join(c.errs...)
}

func (p *Pod) references() []reference {
	refs := p.environmentReferences()
	for i, v := range p.Spec.Volumes {
		field := fmt.Sprintf("spec.volumes[%d]", i)
		switch {
		case v.ConfigMap != nil:
			refs = append(refs, itemsReference(field+".configMap", "name", kindConfigMap, v.ConfigMap.Name, v.ConfigMap.Items,
				v.ConfigMap.Optional))
		case v.Secret != nil:
			refs = append(refs, itemsReference(field+".secret", "secretName", kindSecret, v.Secret.SecretName, v.Secret.Items,
				v.Secret.Optional))
		case v.Projected != nil:
			for j, source := range v.Projected.Sources {
				field := fmt.Sprintf("%s.projected.sources[%d]", field, j)
				if s := source.ConfigMap; s != nil {
					refs = append(refs, itemsReference(field+".configMap", "name", kindConfigMap, s.Name, s.Items, s.Optional))
				}
				if s := source.Secret; s != nil {
					refs = append(refs, itemsReference(field+".secret", "name", kindSecret, s.Name, s.Items, s.Optional))
				}
			}
		}
	}
	return refs
}

func itemsReference(field, nameField, kind, name string, items []corev1.KeyToPath, optional *bool) reference {
	ref := reference{field: field + "." + nameField, kind: kind, name: name, optional: optional,
		keyField: func(i int) string { return fmt.Sprintf("%s.items[%d].key", field, i) }}
	for _, item := range items {
		ref.keys = append(ref.keys, item.Key)
	}
	return ref
}

func (p *Pod) environmentReferences() []reference {
	var refs []reference
	list := func(path string, all []corev1.Container) {
		for i := range all {
			for j, from := range all[i].EnvFrom {
				field := fmt.Sprintf("%s[%d].envFrom[%d]", path, i, j)
				if r := from.ConfigMapRef; r != nil {
					refs = append(refs, reference{field: field + ".configMapRef.name", kind: kindConfigMap, name: r.Name,
						optional: r.Optional})
				}
				if r := from.SecretRef; r != nil {
					refs = append(refs, reference{field: field + ".secretRef.name", kind: kindSecret, name: r.Name,
						optional: r.Optional})
				}
			}
			for j, env := range all[i].Env {
				if env.ValueFrom == nil {
					continue
				}
				field := fmt.Sprintf("%s[%d].env[%d].valueFrom", path, i, j)
				if r := env.ValueFrom.ConfigMapKeyRef; r != nil {
					refs = append(refs, keyReference(field+".configMapKeyRef", kindConfigMap, r.Name, r.Key, r.Optional))
				}
				if r := env.ValueFrom.SecretKeyRef; r != nil {
					refs = append(refs, keyReference(field+".secretKeyRef", kindSecret, r.Name, r.Key, r.Optional))
				}
			}
		}
	}
	list("spec.initContainers", p.Spec.InitContainers)
	list("spec.containers", p.Spec.Containers)
	return refs
}

func keyReference(field, kind, name, key string, optional *bool) reference {
	return reference{field: field + ".name", kind: kind, name: name, keys: []string{key}, optional: optional,
		variable: true, keyField: func(int) string { return field + ".key" }}
}

// variables are what envFrom makes of an object, in the order of their names. What cannot be a variable is left out, as
// by a kubelet.
func (p *Pod) variables(kind, name, prefix string) (names []string, values map[string]string) {
	found := p.objects.find(kind, p.Namespace, name)
	if found == nil {
		return nil, nil // optional
	}
	values = map[string]string{}
	for key, value := range found.data {
		if variable := prefix + key; !found.binary[key] && len(validation.IsRelaxedEnvVarName(variable)) == 0 &&
			!strings.ContainsRune(string(value), 0) {
			values[variable] = string(value)
		}
	}
	return slices.Sorted(maps.Keys(values)), values
}

// keyValue is the value of a key for a variable; ok is false where an optional reference finds nothing.
func (p *Pod) keyValue(kind, name, key string) (value string, ok bool) {
	found := p.objects.find(kind, p.Namespace, name)
	if found == nil || found.binary[key] {
		return "", false
	}
	data, ok := found.data[key]
	return string(data), ok
}
