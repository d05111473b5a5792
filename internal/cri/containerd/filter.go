package containerd

import "strings"

// fields are the plain fields of an object that containerd's filters may ask for, by path.
type fields map[string]string

// Field is the value at a path, where it is not empty.
func (f fields) Field(path []string) (string, bool) {
	v := f[strings.Join(path, ".")]
	return v, v != ""
}

// labeled are the fields of an object that has labels.
type labeled struct {
	fields
	labels map[string]string
}

// Field knows "labels" too. The name of a label may have dots in it, which the path is split at.
func (l labeled) Field(path []string) (string, bool) {
	if len(path) > 1 && path[0] == "labels" {
		v, ok := l.labels[strings.Join(path[1:], ".")]
		return v, ok
	}
	return l.fields.Field(path)
}
