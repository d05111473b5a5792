package berthv1

import (
	"google.golang.org/grpc"

	api "berth/api/berth/v1"
)

// Save sends an archive. A client that goes away ends the call's context, and with it the child that makes a layer.
func (s *service) Save(req *api.SaveRequest, stream grpc.ServerStreamingServer[api.SaveResponse]) error {
	return s.archive.Save(stream.Context(), req.GetImages(), &archiveWriter{stream})
}

// saveChunk is how many bytes of an archive a message carries.
const saveChunk = 1 << 20

// archiveWriter sends bytes in messages. A client that reads slowly is waited for.
type archiveWriter struct {
	stream grpc.ServerStreamingServer[api.SaveResponse]
}

func (w *archiveWriter) Write(p []byte) (int, error) {
	written := 0
	for len(p) > 0 {
		n := min(len(p), saveChunk)
		if err := w.stream.Send(&api.SaveResponse{Data: p[:n]}); err != nil {
			return written, err
		}
		written, p = written+n, p[n:]
	}
	return written, nil
}
