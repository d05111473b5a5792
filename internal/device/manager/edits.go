package manager

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"berth/internal/model"
)

// readEdits is a plugin's answer in our words. What no container could have is an error that names the plugin's field.
func readEdits(resource string, in *pluginapi.ContainerAllocateResponse) (model.Edits, error) {
	out := model.Edits{Source: "device plugin of " + resource}
	bad := func(format string, args ...any) (model.Edits, error) {
		return out, fmt.Errorf("%s: Allocate: its answer has %s: %w", out.Source, fmt.Sprintf(format, args...),
			errdefs.ErrFailedPrecondition)
	}
	badPath := func(s string) bool { return !path.IsAbs(s) || strings.ContainsRune(s, 0) }
	for _, key := range slices.Sorted(maps.Keys(in.GetEnvs())) {
		value := in.GetEnvs()[key]
		if key == "" || strings.ContainsAny(key, "=\x00") || strings.ContainsRune(value, 0) {
			return bad("envs[%q], which is no variable", key)
		}
		out.Env = append(out.Env, model.EnvVar{Key: key, Value: value})
	}
	for i, m := range in.GetMounts() {
		if badPath(m.GetContainerPath()) || badPath(m.GetHostPath()) {
			return bad("mounts[%d] of %q at %q, which are not both absolute paths", i, m.GetHostPath(), m.GetContainerPath())
		}
		out.Mounts = append(out.Mounts, model.Mount{ContainerPath: m.GetContainerPath(), HostPath: m.GetHostPath(),
			Readonly: m.GetReadOnly()})
	}
	for i, d := range in.GetDevices() {
		if badPath(d.GetHostPath()) || d.GetContainerPath() != "" && badPath(d.GetContainerPath()) {
			return bad("devices[%d] of %q at %q, which are not both absolute paths", i, d.GetHostPath(), d.GetContainerPath())
		}
		if strings.Trim(d.GetPermissions(), "rwm") != "" {
			return bad("devices[%d].permissions %q, which are not made of r, w and m", i, d.GetPermissions())
		}
		out.Devices = append(out.Devices, model.Device{
			HostPath: d.GetHostPath(), ContainerPath: d.GetContainerPath(), Permissions: d.GetPermissions(),
		})
	}
	for i, d := range in.GetCdiDevices() {
		if _, _, _, err := parser.ParseQualifiedName(d.GetName()); err != nil {
			return bad("cdi_devices[%d]: %v", i, err)
		}
		out.CDIDevices = append(out.CDIDevices, d.GetName())
	}
	if len(in.GetAnnotations()) > 0 {
		out.Annotations = maps.Clone(in.GetAnnotations())
	}
	return out, nil
}
