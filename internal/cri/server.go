package cri

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/keepalive"

	"berth/internal/cri/request"
)

const (
	// MaxReceive is the largest request: a kubelet's own limit for messages is as large.
	MaxReceive = 16 << 20
	// MaxSend is the largest response. Clients have limits of their own, 16 MiB in a kubelet and crictl.
	MaxSend = 32 << 20
	// workers is how many goroutines handle calls, one after another each. They keep the stacks that calls grow, which
	// each new goroutine grows again by copies. Calls for which none of them is free get a goroutine of their own.
	workers = 8
)

// ServerConfig is the configuration of a server.
type ServerConfig struct {
	Log     *slog.Logger
	Metrics prometheus.Registerer // nil: calls are not measured
	// Names are what the APIs call fields of the model, by gRPC service, or by service and method ("service/Method") where
	// a request calls them otherwise: errors name the fields so. A service without them names the fields as the model
	// does.
	Names map[string]request.Names
	// InFlight counts the calls that are handled; nil: nobody needs to know.
	InFlight *InFlight
	// Failed is told of each error, as it was before it became a status; nil: nobody wants to know.
	Failed func(error)
}

// NewServer returns a gRPC server without services: APIs register themselves on it.
func NewServer(cfg ServerConfig) (*grpc.Server, error) {
	calls := &calls{log: cfg.Log, names: cfg.Names, flying: cfg.InFlight, failed: cfg.Failed}
	if cfg.Log == nil {
		calls.log = slog.New(slog.DiscardHandler)
	}
	if cfg.Metrics != nil {
		m, err := newMetrics(cfg.Metrics)
		if err != nil {
			return nil, err
		}
		calls.metrics = m
	}
	unary, stream := calls.metrics.interceptors()
	return grpc.NewServer(
		grpc.Creds(unixCredentials{}),
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(proto.Name)}),
		grpc.MaxRecvMsgSize(MaxReceive),
		grpc.MaxSendMsgSize(MaxSend),
		grpc.NumStreamWorkers(workers),
		// Clients that ping on an idle connection are welcome: the default would disconnect them.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(append(unary, calls.unary)...),
		grpc.ChainStreamInterceptor(append(stream, calls.stream)...),
	), nil
}
