package v1

import (
	"regexp"

	"berth/internal/cri/request"
)

type (
	path  = request.Path
	check = request.Check
)

var (
	newCheck  = request.New
	checkOnly = request.CheckOnly
)

var (
	hugepageSize = regexp.MustCompile(`^[1-9][0-9]*[KMGTP]?B$`)
	cpuList      = regexp.MustCompile(`^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$`)
	sysctlName   = regexp.MustCompile(`^[A-Za-z0-9_-]+([./][A-Za-z0-9_:*-]+)+$`)
	unifiedName  = regexp.MustCompile(`^[a-z0-9_]+(\.[A-Za-z0-9_]+)+$`)
)
