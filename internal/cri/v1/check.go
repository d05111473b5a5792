package v1

import (
	"regexp"

	"google.golang.org/protobuf/proto"

	"berth/internal/cri/request"
)

type path = request.Path

// check is a check of a request in a dialect.
type check struct {
	*request.Check
	dialect Dialect
	// imageVolume tells that the path below the image of an image volume is refused, which a kubelet counts apart.
	imageVolume bool
}

func newCheck(d Dialect, req proto.Message) *check {
	return &check{Check: request.NewWith(req, d.Enum), dialect: d}
}

func checkOnly(d Dialect, req proto.Message) error { return newCheck(d, req).Err() }

var (
	hugepageSize = regexp.MustCompile(`^[1-9][0-9]*[KMGTP]?B$`)
	cpuList      = regexp.MustCompile(`^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$`)
	sysctlName   = regexp.MustCompile(`^[A-Za-z0-9_-]+([./][A-Za-z0-9_:*-]+)+$`)
	unifiedName  = regexp.MustCompile(`^[a-z0-9_]+(\.[A-Za-z0-9_]+)+$`)
)
