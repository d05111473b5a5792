package ocispec

import (
	"maps"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/ocihook"
)

// hooks adds those that the node's files have for the container, after those of its CDI devices. The pod's annotations
// win over the container's, as in CRI-O.
func (b *builder) hooks() error {
	if dirs := b.in.Handler.HookDirs; len(dirs) > 0 {
		annotations := map[string]string{}
		maps.Copy(annotations, b.in.Container.Annotations)
		maps.Copy(annotations, b.in.Sandbox.Annotations)
		if err := ocihook.Inject(b.spec, dirs, annotations, len(b.in.Container.Mounts) > 0); err != nil {
			return err
		}
	}
	hookDefaults(b.spec.Hooks)
	return nil
}

// hookPath is the environment of hooks that come with none. Runtimes give such a hook their own environment, which for
// createContainer is the container's with some of them: the image's LD_PRELOAD would be loaded by a program
// of the host's.
const hookPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// hookTimeout is how long a hook may take that says nothing of it, in seconds: as long as a kubelet waits for the start
// of a container. Runtimes would wait without end.
const hookTimeout = 120

// hookDefaults gives each hook of a specification an environment of its own, and an end.
func hookDefaults(hooks *specs.Hooks) {
	if hooks == nil {
		return
	}
	for _, list := range [][]specs.Hook{
		//lint:ignore SA1019 specifications of devices may still have them
		hooks.Prestart,
		hooks.CreateRuntime, hooks.CreateContainer, hooks.StartContainer, hooks.Poststart, hooks.Poststop,
	} {
		for i := range list {
			if len(list[i].Env) == 0 {
				list[i].Env = []string{hookPath}
			}
			if list[i].Timeout == nil {
				list[i].Timeout = new(hookTimeout)
			}
		}
	}
}
