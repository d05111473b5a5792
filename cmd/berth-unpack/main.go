// Command berth-unpack is what berthd starts to parse images and archives, in a jail. It does nothing by itself.
package main

import (
	"berth/internal/jail/child"
	"berth/internal/jail/roles"
)

func main() { child.Main(roles.All()) }
