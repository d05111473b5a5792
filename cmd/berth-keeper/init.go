package main

import (
	"os"
	"runtime"

	"github.com/opencontainers/runc/libcontainer"
	_ "github.com/opencontainers/runc/libcontainer/nsenter" // joins namespaces before Go's runtime has threads

	"berth/internal/keeper/filter"
	"berth/internal/keeper/hook"
	_ "berth/internal/keeper/podinit" // the pod's init, before Go's runtime starts
	_ "berth/internal/keeper/proxy"   // the process that stands for a container of a sandbox, before Go's runtime starts
	engine "berth/internal/keeper/runtime/libcontainer"
	_ "berth/internal/keeper/sigdefault" // signals that whoever started the keeper ignores
	_ "berth/internal/keeper/timerslack" // how late the sleeps of threads end
)

func init() {
	if len(os.Args) > 1 && os.Args[1] == "init" {
		libcontainer.Init() // sets up what is to become an init process or an exec; does not return
	}
	if len(os.Args) == 2 && os.Args[1] == filter.Argument {
		filter.Main()
	}
	if len(os.Args) > 1 && os.Args[1] == hook.Argument {
		os.Exit(hook.Main())
	}
	if len(os.Args) > 1 && os.Args[1] == engine.CRIUCommand {
		os.Exit(engine.CRIU())
	}
	// libcontainer moves a thread of its own into each container's mount namespace and lets it end there. The main
	// thread cannot end: it would stay behind in that namespace, and hold it. So no other goroutine may have it.
	runtime.LockOSThread()
}
