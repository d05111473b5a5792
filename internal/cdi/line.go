package cdi

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"regexp"
	"strconv"

	"go.yaml.in/yaml/v3"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	raw "tags.cncf.io/container-device-interface/specs-go"
)

// The library says what is wrong with a file and not where. JSON is YAML, so one parser finds the lines of both.

// document is a file's top mapping; nil where it is none.
func document(data []byte) *yaml.Node {
	var doc yaml.Node
	if yaml.Unmarshal(data, &doc) != nil || len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode {
		return nil
	}
	return doc.Content[0]
}

// field is the key and the value of a mapping's field; nil where it has none.
func field(mapping *yaml.Node, name string) (key, value *yaml.Node) {
	if mapping == nil || mapping.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == name {
			return mapping.Content[i], mapping.Content[i+1]
		}
	}
	return nil, nil
}

// item is an element of a list; nil where it has none.
func item(list *yaml.Node, i int) *yaml.Node {
	if list == nil || list.Kind != yaml.SequenceNode || i >= len(list.Content) {
		return nil
	}
	return list.Content[i]
}

// line is that of the first node that there is, else 1.
func line(nodes ...*yaml.Node) int {
	for _, n := range nodes {
		if n != nil && n.Line > 0 {
			return n.Line
		}
	}
	return 1
}

func lineOfKind(path string) int {
	key, _ := field(document(read(path)), "kind")
	return line(key)
}

func lineOfDevice(path, name string) int {
	_, devices := field(document(read(path)), "devices")
	for i := 0; item(devices, i) != nil; i++ {
		if key, value := field(item(devices, i), "name"); value != nil && value.Value == name {
			return line(key)
		}
	}
	return line(devices)
}

var (
	parserLine  = regexp.MustCompile(`\bline (\d+):`)
	conflicting = regexp.MustCompile(`conflicting device "[^"]*=([^"]*)"`)
)

// lineOfError is where in a file the cause of an error is that the library gave for the file.
func lineOfError(path string, err error) int {
	// Of what is not even JSON, the other parser does not always know the line.
	var syntax *json.SyntaxError
	if data := read(path); filepath.Ext(path) == ".json" && errors.As(json.Unmarshal(data, new(any)), &syntax) {
		return 1 + bytes.Count(data[:syntax.Offset], []byte("\n"))
	}
	if m := parserLine.FindStringSubmatch(err.Error()); m != nil {
		n, _ := strconv.Atoi(m[1])
		return n
	}
	if m := conflicting.FindStringSubmatch(err.Error()); m != nil {
		return lineOfDevice(path, m[1])
	}
	data := read(path)
	top := document(data)
	spec, parseErr := cdi.ParseSpec(data)
	if top == nil || parseErr != nil || spec == nil {
		return 1
	}
	kindKey, _ := field(top, "kind")
	vendor, class := parser.ParseQualifier(spec.Kind)
	// What the library does not look at comes first, as when the file is read: the library's checks rely on it.
	if _, edits := field(top, "containerEdits"); checkEdits(&spec.ContainerEdits) != nil {
		return lineOfEdits(edits, &spec.ContainerEdits)
	}
	_, list := field(top, "devices")
	for i, d := range spec.Devices {
		if _, edits := field(item(list, i), "containerEdits"); checkEdits(&d.ContainerEdits) != nil {
			return lineOfEdits(edits, &d.ContainerEdits)
		}
	}
	if raw.ValidateVersion(spec) != nil {
		key, _ := field(top, "cdiVersion")
		return line(key, top)
	}
	if parser.ValidateVendorName(vendor) != nil || parser.ValidateClassName(class) != nil {
		return line(kindKey, top)
	}
	if _, edits := field(top, "containerEdits"); (&cdi.ContainerEdits{ContainerEdits: &spec.ContainerEdits}).
		Validate() != nil {
		return lineOfEdits(edits, &spec.ContainerEdits)
	}
	seen := map[string]bool{}
	for i, d := range spec.Devices {
		node := item(list, i)
		key, _ := field(node, "name")
		if parser.ValidateDeviceName(d.Name) != nil || seen[d.Name] {
			return line(key, node, list)
		}
		seen[d.Name] = true
		editsKey, edits := field(node, "containerEdits")
		if (&cdi.ContainerEdits{ContainerEdits: &d.ContainerEdits}).Validate() != nil {
			return lineOfEdits(edits, &d.ContainerEdits)
		}
		// The library says of which device it is that its edits are empty or its annotations wrong.
		if regexp.MustCompile(`failed add device "` + regexp.QuoteMeta(d.Name) + `"`).MatchString(err.Error()) {
			return line(editsKey, key, node)
		}
	}
	return line(list, top)
}

// lineOfEdits is where the edits are that the library refuses.
func lineOfEdits(node *yaml.Node, e *raw.ContainerEdits) int {
	for name, check := range map[string]func(i int) error{
		"env": at(e.Env, func(v string) error { return cdi.ValidateEnv([]string{v}) }),
		"deviceNodes": at(e.DeviceNodes, first(checkDeviceNode, func(v *raw.DeviceNode) error {
			return (&cdi.DeviceNode{DeviceNode: v}).Validate()
		})),
		"hooks":  at(e.Hooks, first(notNil, func(v *raw.Hook) error { return (&cdi.Hook{Hook: v}).Validate() })),
		"mounts": at(e.Mounts, first(notNil, func(v *raw.Mount) error { return (&cdi.Mount{Mount: v}).Validate() })),
		"netDevices": at(e.NetDevices, first(notNil, func(v *raw.LinuxNetDevice) error {
			return (&cdi.LinuxNetDevice{LinuxNetDevice: v}).Validate()
		})),
	} {
		_, list := field(node, name)
		for i := 0; ; i++ {
			err := check(i)
			if errors.Is(err, errEnd) {
				break
			}
			if err != nil {
				return line(item(list, i), list, node)
			}
		}
	}
	return line(node)
}

// first is a check that is made after another one has passed.
func first[T any](before, then func(*T) error) func(*T) error {
	return func(v *T) error {
		if err := before(v); err != nil {
			return err
		}
		return then(v)
	}
}

var errEnd = errors.New("end of the list")

// at checks one element of a list, and says where the list ends.
func at[T any](list []T, check func(T) error) func(int) error {
	return func(i int) error {
		if i >= len(list) {
			return errEnd
		}
		return check(list[i])
	}
}
