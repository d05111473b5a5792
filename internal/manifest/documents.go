package manifest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// maxSize is the largest manifest that is read, in bytes. An API server takes 3 MiB for one object.
const maxSize = 16 << 20

// File is a file of documents.
type File struct {
	Name string // for errors
	In   io.Reader
}

// Documents are the documents of all files of a manifest.
type Documents struct {
	Groups []*Group
	// Notes are documents that need a cluster and are left out.
	Notes []string
}

// DecodeFiles reads the documents of several files, YAML or JSON. Unknown fields and doubled keys are errors. A pod may
// refer to the ConfigMaps and Secrets of all of them, whatever their order is.
func DecodeFiles(files []File, options Options) (*Documents, error) {
	d := &decoder{options: options, objects: newObjects()}
	for _, file := range files {
		d.name = file.Name
		if err := d.file(file.In); err != nil {
			return nil, inFile(file.Name, err)
		}
	}
	if err := d.finish(); err != nil {
		return nil, err
	}
	return &Documents{Groups: d.groups, Notes: d.notes}, nil
}

// FileError is what is wrong in one of several files.
type FileError struct {
	File string // its name; empty: it has none
	Err  error
}

func (e *FileError) Error() string {
	if e.File == "" {
		return e.Err.Error()
	}
	return e.File + ": " + e.Err.Error()
}

func (e *FileError) Unwrap() error { return e.Err }

func inFile(name string, err error) error { return &FileError{File: name, Err: err} }

// Pods are the pods of all documents.
func (d *Documents) Pods() []*Pod {
	var pods []*Pod
	for _, group := range d.Groups {
		pods = append(pods, group.Pods...)
	}
	return pods
}

// Several says whether more than one pod may run.
func (d *Documents) Several() bool {
	return len(d.Pods()) > 1 || len(d.Groups) > 0 && d.Groups[0].Job != nil
}

// decoder collects documents.
type decoder struct {
	options Options
	name    string // of the file that is read
	objects *objects
	groups  []*Group
	notes   []string
}

func (d *decoder) file(r io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(r, maxSize+1))
	if err != nil {
		return err
	}
	if len(data) > maxSize {
		return fmt.Errorf("the manifest is larger than %d MiB", maxSize>>20)
	}
	// The reader drops a last line without an end whose length is a multiple of its buffer's.
	data = append(data, '\n')
	reader := kyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	some := false
	for number := 1; ; number++ {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			if !some && d.options.MayBeEmpty {
				return errors.New("the file holds no document")
			}
			return nil
		}
		if err != nil {
			return err
		}
		if blank(document) {
			continue
		}
		some = true
		if err = checkAliases(document); err == nil {
			document, err = yaml.YAMLToJSONStrict(document) // doubled keys are errors
		}
		if err == nil {
			err = d.document(document)
		}
		if err != nil {
			return fmt.Errorf("document %d: %w", number, err)
		}
	}
}

// document reads one document or item of a List, which is JSON by now.
func (d *decoder) document(data []byte) error {
	var kind metav1.TypeMeta
	if err := json.UnmarshalCaseSensitivePreserveInts(data, &kind); err != nil {
		return err
	}
	read, known := kinds[kind.Kind]
	switch {
	case kind.Kind == "":
		return errors.New("kind: missing")
	case !known && d.options.IgnoreUnsupported:
		d.notes = append(d.notes, fmt.Sprintf("kind %s is not supported, and the document is left out", kind.Kind))
		return nil
	case !known:
		return fmt.Errorf("kind: %s is not supported; `berth run --help` lists the kinds that are", kind.Kind)
	case kind.APIVersion != read.version:
		return fmt.Errorf("apiVersion: %q is not %s, the version of kind %s that is supported", kind.APIVersion,
			read.version, kind.Kind)
	}
	return read.read(d, data)
}

// reader reads the documents of one kind.
type reader struct {
	version string
	read    func(*decoder, []byte) error
}

var kinds map[string]reader

func init() { // a List contains documents of all kinds
	kinds = map[string]reader{
		"Pod":            {"v1", (*decoder).pod},
		"List":           {"v1", (*decoder).list},
		"ConfigMap":      {"v1", (*decoder).configMap},
		"Secret":         {"v1", (*decoder).secret},
		"Namespace":      {"v1", (*decoder).namespace},
		"ServiceAccount": {"v1", (*decoder).serviceAccount},

		"PersistentVolumeClaim": {"v1", (*decoder).claim},

		"Deployment":  {"apps/v1", (*decoder).deployment},
		"ReplicaSet":  {"apps/v1", (*decoder).replicaSet},
		"StatefulSet": {"apps/v1", (*decoder).statefulSet},
		"DaemonSet":   {"apps/v1", (*decoder).daemonSet},
		"Job":         {"batch/v1", (*decoder).job},
	}
}

// decodeStrict reads a document of JSON. Unknown fields are errors.
func decodeStrict(data []byte, into any) error {
	unknown, err := json.UnmarshalStrict(data, into)
	if err != nil {
		if wrong := wrongValues(data, reflect.TypeOf(into).Elem()); len(wrong) > 0 {
			return errors.Join(append(unknown, wrong...)...)
		}
	}
	return errors.Join(append(unknown, err)...)
}

func (d *decoder) list(data []byte) error {
	var list struct {
		metav1.TypeMeta `json:",inline"`
		metav1.ListMeta `json:"metadata"`
		Items           []runtime.RawExtension `json:"items"`
	}
	if err := decodeStrict(data, &list); err != nil {
		return err
	}
	for i, item := range list.Items {
		if err := d.document(item.Raw); err != nil {
			return fmt.Errorf("items[%d]: %w", i, err)
		}
	}
	return nil
}

func (d *decoder) pod(data []byte) error {
	pod, err := decodePod(data, d.options, d.objects)
	if err != nil {
		return err
	}
	d.add(&Group{Owner: pod.Owner, Pods: []*Pod{pod}})
	return nil
}

// add adds the pods of a document.
func (d *decoder) add(group *Group) {
	group.File = d.name
	for _, pod := range group.Pods {
		pod.File = d.name
	}
	d.groups = append(d.groups, group)
}

func (d *decoder) serviceAccount(data []byte) error {
	var account corev1.ServiceAccount
	if err := decodeStrict(data, &account); err != nil {
		return err
	}
	d.notes = append(d.notes, fmt.Sprintf("ServiceAccount %s is left out: there is no API server for it", account.Name))
	return nil
}

// finish checks what only all documents together show.
func (d *decoder) finish() error {
	pods := (&Documents{Groups: d.groups}).Pods()
	if len(pods) == 0 && !d.options.MayBeEmpty {
		return errors.New("the manifest holds no pod")
	}
	if d.options.Name != "" && len(d.groups) > 1 {
		return fmt.Errorf("--name is for a manifest of one pod or workload; this one holds %d", len(d.groups))
	}
	seen, namespaces := map[string]*Pod{}, map[string]bool{}
	for _, pod := range pods {
		if other := seen[pod.FullName()]; other != nil {
			return inFile(pod.File, fmt.Errorf("pod %s appears twice%s", pod.FullName(), also(other.File, pod.File)))
		}
		seen[pod.FullName()], namespaces[pod.Namespace] = pod, true
		if err := pod.resolve(d.options); err != nil {
			return inFile(pod.File, fmt.Errorf("pod %s: %w", pod.Name, err))
		}
	}
	if err := d.owners(); err != nil {
		return err
	}
	for _, namespace := range d.objects.namespaces {
		if !namespaces[namespace.name] {
			return inFile(namespace.file, fmt.Errorf("namespace %s: no pod of the manifest is in it", namespace.name))
		}
	}
	return nil
}

// owners refuses two workloads of one kind and name: nothing could tell whose pods are whose.
func (d *decoder) owners() error {
	seen := map[Owner]*Group{}
	for _, group := range d.groups {
		other := seen[group.Owner]
		if other != nil && group.Owner.Kind != "Pod" {
			return inFile(group.File, fmt.Errorf("%s %s/%s appears twice%s", group.Owner.Kind, group.Owner.Namespace,
				group.Owner.Name, also(other.File, group.File)))
		}
		seen[group.Owner] = group
	}
	return nil
}

// also names the other of two files, where it is another.
func also(other, file string) string {
	if other == file {
		return ""
	}
	return ", also in " + other
}

// blank says whether a document holds comments and white space only.
func blank(document []byte) bool {
	for line := range bytes.Lines(document) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("---")) {
			return false
		}
	}
	return true
}
