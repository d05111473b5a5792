package client

import (
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	api "berth/api/keeper"
	"berth/internal/keeper/protocol"
)

// TestAnOlderKeeperIsNotSentVariablesThatAreNotUTF8: it would give the process other values.
func TestAnOlderKeeperIsNotSentVariablesThatAreNotUTF8(t *testing.T) {
	odd, plain := &specs.Process{Env: []string{"A=\xff"}}, &specs.Process{Env: []string{"A=\ufffd"}}
	older := &connection{keeper: &api.InfoResponse{Features: []string{protocol.FeatureShim}}}
	if err := older.requireRawEnv(odd); !errors.Is(err, errdefs.ErrFailedPrecondition) ||
		!strings.Contains(err.Error(), "too old for an environment variable that is not UTF-8") {
		t.Error(err)
	}
	present := &connection{keeper: &api.InfoResponse{Features: []string{protocol.FeatureRawEnv}}}
	if err := errors.Join(older.requireRawEnv(plain), present.requireRawEnv(odd), older.requireRawEnv(nil)); err != nil {
		t.Error(err)
	}
}
