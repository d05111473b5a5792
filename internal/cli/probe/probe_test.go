package probe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpchealth "google.golang.org/grpc/health"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runtime answers ExecSync.
type runtime struct {
	cri.RuntimeServiceClient
	exec  func(*cri.ExecSyncRequest) (*cri.ExecSyncResponse, error)
	calls int
}

func (r *runtime) ExecSync(_ context.Context, request *cri.ExecSyncRequest, _ ...grpc.CallOption) (
	*cri.ExecSyncResponse, error) {
	r.calls++
	return r.exec(request)
}

// verdict is what a probe says: good, bad, or error if it could not be run.
func verdict(err error) string {
	var failure *Failure
	switch {
	case err == nil:
		return "good"
	case errors.As(err, &failure):
		return "bad"
	}
	return "error"
}

func port(t *testing.T, address string) int32 {
	t.Helper()
	at, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return int32(at.Port)
}

func TestHTTPProbesHaveAKubeletsRules(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/good":
			if r.Header.Get("X-A") != "b" || r.Host != "name" || r.URL.RawQuery != "q=1" {
				w.WriteHeader(http.StatusTeapot)
			}
		case "/away":
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		case "/around":
			http.Redirect(w, r, "/around", http.StatusFound)
		case "/100%":
		case "/endless":
			for {
				if _, err := w.Write(make([]byte, 4096)); err != nil {
					return
				}
			}
		case "/moved":
			http.Redirect(w, r, "/bad", http.StatusFound)
		case "/slow":
			time.Sleep(1500 * time.Millisecond)
		default:
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	plain, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer plain.Close()
	defer secure.Close()
	good := corev1.HTTPGetAction{Path: "/good?q=1", Port: intstr.FromString("http"),
		HTTPHeaders: []corev1.HTTPHeader{{Name: "X-A", Value: "b"}, {Name: "Host", Value: "name"}}}
	tls := good
	tls.Scheme, tls.Port = corev1.URISchemeHTTPS, intstr.FromInt32(port(t, secure.Listener.Addr().String()))
	at := func(path string) corev1.HTTPGetAction {
		return corev1.HTTPGetAction{Path: path, Port: intstr.FromString("http")}
	}
	target := &Target{IP: "127.0.0.1", Container: &corev1.Container{Ports: []corev1.ContainerPort{
		{Name: "http", ContainerPort: port(t, plain.Listener.Addr().String())}}}}
	for want, actions := range map[string][]corev1.HTTPGetAction{
		"good":  {good, tls, at("/away"), at("/100%"), at("/endless")},
		"bad":   {at("/bad"), at("/moved"), at("/around"), at("/slow"), {Path: "/", Port: intstr.FromInt32(1)}},
		"error": {{Path: "/", Port: intstr.FromString("none")}},
	} {
		for _, action := range actions {
			probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &action}, TimeoutSeconds: 30}
			if action.Path == "/slow" {
				probe.TimeoutSeconds = 0 // a second
			}
			err := target.check(t.Context(), probe)
			if got := verdict(err); got != want {
				t.Errorf("%v: %s (%v), want %s", action, got, err, want)
			}
		}
	}
}

// TestHeadersOfAManifestReplaceThoseOfAProbe: a server may let in requests by their User-Agent, or choose by Accept how
// it answers. Seen to fail while the headers of the manifest were added to the others.
func TestHeadersOfAManifestReplaceThoseOfAProbe(t *testing.T) {
	got := make(chan http.Header, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header }))
	defer server.Close()
	target := &Target{IP: "127.0.0.1"}
	for _, c := range []struct {
		headers []corev1.HTTPHeader
		hook    bool
		want    http.Header
	}{
		{nil, false, http.Header{"User-Agent": {userAgent}, "Accept": {"*/*"}}},
		{nil, true, http.Header{"User-Agent": {hookAgent}, "Accept": {"*/*"}}},
		{[]corev1.HTTPHeader{{Name: "user-agent", Value: "me"}, {Name: "accept", Value: "text/plain"}}, false,
			http.Header{"User-Agent": {"me"}, "Accept": {"text/plain"}}},
		{[]corev1.HTTPHeader{{Name: "Accept"}, {Name: "X-A", Value: "1"}, {Name: "X-A", Value: "2"}}, true,
			http.Header{"User-Agent": {hookAgent}, "X-A": {"1", "2"}}},
		{[]corev1.HTTPHeader{{Name: "User-Agent"}}, false, http.Header{"Accept": {"*/*"}}},
	} {
		action := &corev1.HTTPGetAction{HTTPHeaders: c.headers,
			Port: intstr.FromInt32(port(t, server.Listener.Addr().String()))}
		var err error
		if c.hook {
			err = target.Hook(t.Context(), &corev1.LifecycleHandler{HTTPGet: action})
		} else {
			err = target.check(t.Context(), &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: action}})
		}
		if err != nil {
			t.Fatal(err)
		}
		headers := <-got
		headers.Del("Connection")
		if !maps.EqualFunc(headers, c.want, slices.Equal) {
			t.Errorf("%v: sent %v, want %v", c.headers, headers, c.want)
		}
	}
}

func TestTCPAndGRPCProbes(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, state := grpc.NewServer(), grpchealth.NewServer()
	health.RegisterHealthServer(server, state)
	state.SetServingStatus("ill", health.HealthCheckResponse_NOT_SERVING)
	go server.Serve(listener) //nolint:errcheck // ended by Stop
	defer server.Stop()
	target := &Target{IP: "127.0.0.1"}
	at, ill := port(t, listener.Addr().String()), "ill"
	for _, c := range []struct {
		handler corev1.ProbeHandler
		want    string
	}{
		{corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(at)}}, "good"},
		{corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(1)}}, "bad"},
		{corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: at}}, "good"},
		{corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: at, Service: &ill}}, "bad"},
		{corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 1}}, "bad"},
	} {
		if err := target.check(t.Context(), &corev1.Probe{ProbeHandler: c.handler}); verdict(err) != c.want {
			t.Errorf("%v: %v, want %s", c.handler, err, c.want)
		}
	}
}

func TestExecProbesTellFailuresFromErrors(t *testing.T) {
	exit := func(code int32, err error) func(*cri.ExecSyncRequest) (*cri.ExecSyncResponse, error) {
		return func(r *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error) {
			if r.Timeout != 3 || r.ContainerId != "id" || !slices.Equal(r.Cmd, []string{"a", "b"}) {
				return nil, fmt.Errorf("asked for %v", r)
			}
			return &cri.ExecSyncResponse{ExitCode: code, Stderr: []byte("why")}, err
		}
	}
	probe := &corev1.Probe{TimeoutSeconds: 3,
		ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"a", "b"}}}}
	for _, c := range []struct {
		code  int32
		err   error
		want  string
		calls int
	}{
		{0, nil, "good", 1},
		{4, nil, "bad", 1},
		{0, status.Error(codes.DeadlineExceeded, "slow"), "bad", 1},
		{0, status.Error(codes.Unavailable, "away"), "error", tries},
	} {
		r := &runtime{exec: exit(c.code, c.err)}
		err := (&Target{Runtime: r, ID: "id"}).try(t.Context(), probe)
		if verdict(err) != c.want || r.calls != c.calls || c.code == 4 && !strings.Contains(err.Error(), "why") {
			t.Errorf("%d, %v: %v after %d calls", c.code, c.err, err, r.calls)
		}
	}
}

func TestThresholdsCountResultsInARow(t *testing.T) {
	for results, want := range map[string]string{
		"f f f f":         "- - bad -",
		"f f s f f f":     "- - - - - bad",
		"s s":             "- good",
		"f f f s s f s s": "- - bad - good - - -",
		"f f e f":         "- - - bad",
	} {
		c := counter{success: 2, failure: 3}
		var got []string
		for _, result := range strings.Fields(results) {
			err := map[string]error{"s": nil, "f": failed("x"), "e": errors.New("no result")}[result]
			tell, known := c.add(err)
			switch {
			case !known || !tell:
				got = append(got, "-")
			default:
				got = append(got, verdict(err))
			}
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s: got %s, want %s", results, text, want)
		}
	}
}

func TestAProbeRunsInItsPeriodsUntilNobodyListens(t *testing.T) {
	codes := []int32{1, 1, 0, 1, 1, 1}
	r := &runtime{}
	r.exec = func(*cri.ExecSyncRequest) (*cri.ExecSyncResponse, error) {
		return &cri.ExecSyncResponse{ExitCode: codes[r.calls-1]}, nil
	}
	var told []string
	(&Target{Runtime: r}).watch(t.Context(), &corev1.Probe{FailureThreshold: 2,
		ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"a"}}}}, time.Millisecond,
		func(err error) bool {
			told = append(told, verdict(err))
			return len(told) < 3
		})
	if !slices.Equal(told, []string{"bad", "good", "bad"}) || r.calls != 5 {
		t.Errorf("told %v after %d calls", told, r.calls)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	(&Target{Runtime: r}).Watch(ctx, &corev1.Probe{InitialDelaySeconds: 3600}, nil) // returns
}

func TestWhatAProbeAnswersDoesNotSpeakToTheTerminal(t *testing.T) {
	if got := failed("exit code 1: %s", "a\nb\x1b]0;title\x07\u009bc").Error(); got != "exit code 1: a b?]0;title??c" {
		t.Errorf("%q", got)
	}
}

// TestAHookSleepsHoweverLong. Seen to fail where 10000000000 seconds were a time that had passed.
func TestAHookSleepsHoweverLong(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	hook := &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 10_000_000_000}}
	if err := (&Target{}).Hook(ctx, hook); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it has ended: %v", err)
	}
}
