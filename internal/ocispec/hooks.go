package ocispec

import specs "github.com/opencontainers/runtime-spec/specs-go"

// hookPath is the environment of hooks that come with none. Runtimes give such a hook their own environment, which for
// createContainer is the container's with some of them: the image's LD_PRELOAD would be loaded by a program
// of the host's.
const hookPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// hookEnvironments gives each hook of a specification an environment of its own.
func hookEnvironments(hooks *specs.Hooks) {
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
		}
	}
}
