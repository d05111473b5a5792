// Command berth is the command line: pods of Kubernetes manifests on the runtime of this machine.
package main

import (
	"os"

	"berth/internal/cli"
)

// version is set by the build.
var version = "0.1.0-dev"

func main() { os.Exit(cli.Main(version, os.Args[1:])) }
