package launch

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/util/rand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
	"berth/internal/manifest"
)

// The IDs of the node that pods with user namespaces get: above those that a kubelet gives, that /etc/subuid has and
// that systemd-nspawn takes, and those of berthd's confined children (package jail), and below 2^31, since some file
// systems take IDs for signed.
const (
	firstRange = 0x7001
	lastRange  = 0x7ffe
)

// freeIDs finds IDs of the node that no pod of the runtime has. It begins anywhere: commands with different data
// directories do not wait for each other, and should not take the same.
func (l *Launcher) freeIDs(ctx context.Context) (uint32, error) {
	pods, err := lookup.Pods(ctx, l.Runtime)
	if err != nil {
		return 0, err
	}
	var taken []*cri.IDMapping
	for _, pod := range pods {
		response, err := l.Runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: pod.GetId()})
		if connection.Code(err) == codes.NotFound {
			continue // removed meanwhile
		}
		if err != nil {
			return 0, connection.Plain(err)
		}
		options := response.GetStatus().GetLinux().GetNamespaces().GetOptions().GetUsernsOptions()
		taken = append(append(taken, options.GetUids()...), options.GetGids()...)
	}
	return chooseIDs(taken, rand.Intn(lastRange-firstRange+1))
}

// chooseIDs returns the first free range from the one of a number on.
func chooseIDs(taken []*cri.IDMapping, from int) (uint32, error) {
	const count = lastRange - firstRange + 1
	for i := range count {
		first := uint64(firstRange+(from+i)%count) * manifest.IDRange
		free := true
		for _, t := range taken {
			start := uint64(t.GetHostId())
			free = free && (start >= first+manifest.IDRange || start+uint64(t.GetLength()) <= first)
		}
		if free {
			return uint32(first), nil
		}
	}
	return 0, errors.New("hostUsers is false, and all IDs for user namespaces are taken by pods")
}
