package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/table"
	"berth/internal/manifest"
)

// userAgent and hookAgent are what requests of probes and of hooks say of their sender. Servers know a kubelet's by the
// part before the slash.
const (
	userAgent = "kube-probe/berth"
	hookAgent = "kube-lifecycle/berth"
)

// maxRedirects is how many redirects are followed before a probe fails.
const maxRedirects = 10

// maxOutput is how much of what a probe prints or answers is shown, in bytes.
const maxOutput = 512

// Target is a container that is probed.
type Target struct {
	Runtime   cri.RuntimeServiceClient
	ID        string
	IP        string // of the pod; of the node for a pod on the node's network
	Container *corev1.Container
	// Since is when the container was started, if it was not just now: an initial delay counts from then.
	Since time.Time
}

// Failure is a probe that says that the container does not do well. Other errors say that the probe could not be run.
type Failure struct{ Text string }

func (f *Failure) Error() string { return f.Text }

func failed(format string, args ...any) error {
	return &Failure{table.Sentence(fmt.Sprintf(format, args...))}
}

// check runs a probe once.
func (t *Target) check(ctx context.Context, p *corev1.Probe) error {
	timeout := time.Duration(max(p.TimeoutSeconds, 1)) * time.Second
	if p.Exec != nil {
		return t.exec(ctx, p.Exec.Command, timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	switch {
	case p.HTTPGet != nil:
		return t.get(ctx, p.HTTPGet)
	case p.TCPSocket != nil:
		return t.connect(ctx, p.TCPSocket)
	case p.GRPC != nil:
		return t.health(ctx, p.GRPC)
	}
	return errors.New("the probe has no action")
}

// exec runs a command in the container. Without timeout it may run as long as the context lives.
func (t *Target) exec(ctx context.Context, command []string, timeout time.Duration) error {
	response, err := t.Runtime.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: t.ID, Cmd: command,
		Timeout: int64(timeout / time.Second)})
	switch {
	case connection.Code(err) == codes.DeadlineExceeded && ctx.Err() == nil:
		return failed("the command did not end within %v", timeout)
	case err != nil:
		return connection.Plain(err)
	case response.GetExitCode() != 0:
		output := strings.TrimSpace(string(response.GetStdout()) + string(response.GetStderr()))
		return failed("exit code %d: %.*s", response.GetExitCode(), maxOutput, output)
	}
	return nil
}

// port finds the number of a port, which may be a name of one of the container's.
func (t *Target) port(port intstr.IntOrString) (string, error) {
	if port.Type == intstr.Int {
		return strconv.Itoa(int(port.IntVal)), nil
	}
	for _, p := range t.Container.Ports {
		if p.Name == port.StrVal {
			return strconv.Itoa(int(p.ContainerPort)), nil
		}
	}
	if _, err := strconv.ParseUint(port.StrVal, 10, 16); err == nil {
		return port.StrVal, nil
	}
	return "", fmt.Errorf("the container has no port %q", port.StrVal)
}

func (t *Target) address(host string, port intstr.IntOrString) (string, error) {
	if host == "" {
		host = t.IP
	}
	if host == "" {
		return "", errors.New("the pod has no address")
	}
	number, err := t.port(port)
	return net.JoinHostPort(host, number), err
}

// request is the HTTP request of a probe or hook. agent is its sender, unless the manifest has a header that says so.
func (t *Target) request(ctx context.Context, get *corev1.HTTPGetAction, agent string) (*http.Request, error) {
	address, err := t.address(get.Host, get.Port)
	if err != nil {
		return nil, err
	}
	where, err := url.Parse(get.Path) // it may have a query
	if err != nil {
		where = &url.URL{Path: get.Path} // as it is written
	}
	where.Scheme, where.Host = strings.ToLower(string(get.Scheme)), address
	if where.Scheme == "" {
		where.Scheme = "http"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, where.String(), nil)
	if err != nil {
		return nil, err
	}
	for _, header := range get.HTTPHeaders {
		request.Header.Add(header.Name, header.Value)
	}
	if host := request.Header.Get("Host"); host != "" {
		request.Host = host
	}
	if len(request.Header.Values("User-Agent")) == 0 {
		request.Header.Set("User-Agent", agent)
	}
	if len(request.Header.Values("Accept")) == 0 {
		request.Header.Set("Accept", "*/*")
	} else if request.Header.Get("Accept") == "" {
		request.Header.Del("Accept") // an empty header asks for none
	}
	return request, nil
}

// client makes requests as a kubelet does: certificates are not verified, since they are for the names of Services and
// not for a pod's address, and redirects are followed on the same host only. One to another host is an answer.
func client() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig:    &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // as a kubelet does
			DisableKeepAlives:  true,
			DisableCompression: true,
		},
		CheckRedirect: func(request *http.Request, before []*http.Request) error {
			if request.URL.Hostname() != before[0].URL.Hostname() {
				return http.ErrUseLastResponse
			}
			if len(before) >= maxRedirects {
				return fmt.Errorf("stopped after %d redirects", maxRedirects)
			}
			return nil
		},
	}
}

func (t *Target) get(ctx context.Context, get *corev1.HTTPGetAction) error {
	request, err := t.request(ctx, get, userAgent)
	if err != nil {
		return err
	}
	response, err := client().Do(request)
	if err != nil {
		return failed("%v", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxOutput))
	if err != nil {
		return failed("GET %s: %v", request.URL, err)
	}
	if response.StatusCode < 200 || response.StatusCode >= 400 {
		return failed("GET %s: status %d: %s", request.URL, response.StatusCode, strings.TrimSpace(string(body)))
	}
	return nil
}

func (t *Target) connect(ctx context.Context, socket *corev1.TCPSocketAction) error {
	address, err := t.address(socket.Host, socket.Port)
	if err != nil {
		return err
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return failed("%v", err)
	}
	conn.Close()
	return nil
}

// health asks a server of gRPC's health checking protocol.
func (t *Target) health(ctx context.Context, action *corev1.GRPCAction) error {
	address, err := t.address("", intstr.FromInt32(action.Port))
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUserAgent(userAgent), grpc.WithNoProxy())
	if err != nil {
		return err
	}
	defer conn.Close()
	service := ""
	if action.Service != nil {
		service = *action.Service
	}
	response, err := health.NewHealthClient(conn).Check(ctx, &health.HealthCheckRequest{Service: service})
	if err != nil {
		return failed("health of %s: %v", address, err)
	}
	if status := response.GetStatus(); status != health.HealthCheckResponse_SERVING {
		return failed("health of %s: %s", address, status)
	}
	return nil
}

// Hook runs a postStart or preStop hook until it has ended or ctx has.
func (t *Target) Hook(ctx context.Context, hook *corev1.LifecycleHandler) error {
	switch {
	case hook.Exec != nil:
		return t.exec(ctx, hook.Exec.Command, 0)
	case hook.HTTPGet != nil: // whatever the answer is, as for a kubelet
		request, err := t.request(ctx, hook.HTTPGet, hookAgent)
		if err != nil {
			return err
		}
		response, err := client().Do(request)
		if err == nil {
			response.Body.Close()
		}
		return err
	case hook.Sleep != nil:
		select {
		case <-time.After(manifest.Seconds(hook.Sleep.Seconds)):
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}
