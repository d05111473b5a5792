package devicefields

import (
	_ "embed"
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

//go:embed intro.md
var intro string

// row is what the two sides do with a call or a field, and the tests that show it, in one string.
type row struct{ manager, plugin, tests string }

// page is docs/devices.md. It fails on what the list does not know, or has beyond the interface.
func page(links func(tests string) (string, error)) (string, error) {
	var b strings.Builder
	b.WriteString(intro)
	unused := map[string]bool{}
	for name := range list {
		unused[name] = true
	}
	line := func(name, shown string) error {
		r, ok := list[name]
		if !ok {
			return fmt.Errorf("the list does not know %s", name)
		}
		delete(unused, name)
		tests, err := links(r.tests)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if tests == "" || r.manager == "" || r.plugin == "" {
			return fmt.Errorf("%s: the list does not say it all", name)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", shown, r.manager, r.plugin, tests)
		return nil
	}
	const head = "the manager | the plugin | shown by |\n|---|---|---|---|\n"
	file := pluginapi.File_staging_src_k8s_io_kubelet_pkg_apis_deviceplugin_v1beta1_api_proto
	for i := range file.Services().Len() {
		s := file.Services().Get(i)
		fmt.Fprintf(&b, "\n### Service %s\n\n| call | "+head, s.Name())
		for j := range s.Methods().Len() {
			m := s.Methods().Get(j)
			if err := line(string(m.Name()), string(m.Name())); err != nil {
				return "", err
			}
		}
	}
	for i := range file.Messages().Len() {
		m := file.Messages().Get(i)
		if m.Fields().Len() == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n### %s\n\n| field | "+head, m.Name())
		for j := range m.Fields().Len() {
			f := m.Fields().Get(j)
			if err := line(string(m.Name())+"."+string(f.Name()), fmt.Sprintf("%s (%s)", f.Name(), kind(f))); err != nil {
				return "", err
			}
		}
	}
	for name := range unused {
		return "", fmt.Errorf("the interface has no %s", name)
	}
	return b.String(), nil
}

func kind(f protoreflect.FieldDescriptor) string {
	name := f.Kind().String()
	if f.Message() != nil {
		name = string(f.Message().Name())
	}
	switch {
	case f.IsMap():
		return "map of strings"
	case f.IsList():
		return "list of " + name
	}
	return name
}
