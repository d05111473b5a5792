package dashboard

import (
	"context"
	"os"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
)

// nodeState is what the head of the page says.
type nodeState struct {
	Host    string   `json:"host"`
	Version string   `json:"version"` // of berth
	Runtime string   `json:"runtime"` // name and version
	Address string   `json:"address"`
	Trouble []string `json:"trouble,omitempty"` // why the runtime starts no pods
}

func (s *Server) readNode(ctx context.Context) (any, error) {
	version, err := s.conn.Runtime.Version(ctx, &cri.VersionRequest{})
	if err != nil {
		return nil, connection.Plain(err)
	}
	status, err := s.conn.Runtime.Status(ctx, &cri.StatusRequest{})
	if err != nil {
		return nil, connection.Plain(err)
	}
	state := &nodeState{Version: s.Version, Address: s.conn.Address,
		Runtime: version.GetRuntimeName() + " " + version.GetRuntimeVersion()}
	state.Host, _ = os.Hostname()
	for _, c := range status.GetStatus().GetConditions() {
		if !c.GetStatus() {
			state.Trouble = append(state.Trouble, c.GetType()+": "+c.GetReason()+" "+c.GetMessage())
		}
	}
	return state, nil
}
