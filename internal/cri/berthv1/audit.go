package berthv1

import (
	"context"

	"google.golang.org/grpc"

	api "berth/api/berth/v1"
)

// Audit is who ran what in which container.
type Audit interface {
	// Subscribe passes each line that is written to take, until that fails or ctx ends.
	Subscribe(ctx context.Context, take func(line []byte) error) error
}

type auditService struct {
	api.UnimplementedAuditServer
	audit Audit
}

// Follow sends each line of the audit as it is written.
func (s *auditService) Follow(_ *api.FollowRequest, stream grpc.ServerStreamingServer[api.AuditLine]) error {
	return s.audit.Subscribe(stream.Context(), func(line []byte) error {
		return stream.Send(&api.AuditLine{Json: line})
	})
}
