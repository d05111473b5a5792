package parts

import (
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/model"
)

func TestResolvConf(t *testing.T) {
	got, err := resolvConf(&model.DNS{
		Servers: []string{"10.0.0.10"}, Searches: []string{"a.svc", "svc"}, Options: []string{"ndots:5"},
	})
	if want := "search a.svc svc\nnameserver 10.0.0.10\noptions ndots:5\n"; err != nil || string(got) != want {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := resolvConf(
		&model.DNS{Servers: []string{"1.1.1.1\nnameserver 6.6.6.6"}}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a line break: %v", err)
	}
}
