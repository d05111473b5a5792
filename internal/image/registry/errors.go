package registry

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"

	limits "berth/internal/image/source"
	"berth/internal/image/unpack"
	"berth/internal/model"
)

// ErrCorrupt is content that is not what its digest says.
var ErrCorrupt = errors.New("content does not match its digest")

var query = regexp.MustCompile(`(https?://[^\s"?]*)\?[^\s"]*`)

// failure is why a host did not give what it was asked for. Its text holds no secret; it unwraps to a sentinel of
// errdefs, and to ErrCorrupt or model.ErrRegistryUnavailable where that is the reason.
type failure struct {
	text       string
	kind       error
	corrupt    bool
	transient  bool // another attempt may do better
	unanswered bool // the host has not answered, or has stopped in the middle of an answer
	failing    bool // the host has answered that it cannot
	retryAfter time.Duration
	busy       bool // the host is asked too often
	// unreachable says that there is no connection to the host, or to the proxy before it.
	unreachable bool
	slow        bool // the host has sent less than another one should
}

func (f *failure) Error() string { return f.text }

func (f *failure) Unwrap() []error {
	switch {
	case f.corrupt:
		return []error{f.kind, ErrCorrupt}
	case f.unanswered, f.failing:
		return []error{f.kind, model.ErrRegistryUnavailable}
	}
	return []error{f.kind}
}

// worse picks the failure that tells most. What a client can do something about is first: credentials, then
// a bad image, then a host that is away, and last that a host (a mirror, perhaps) does not have the image.
func worse(a, b *failure) *failure {
	rank := func(f *failure) int {
		switch {
		case f == nil:
			return 0
		case errdefs.IsNotFound(f.kind):
			return 1
		case f.transient:
			return 2
		case errdefs.IsUnauthorized(f.kind), errdefs.IsPermissionDenied(f.kind):
			return 4
		}
		return 3
	}
	if rank(b) > rank(a) {
		return b
	}
	return a
}

// explain says what an error of the library means.
func (r *Repository) explain(host docker.RegistryHost, err error) *failure {
	f := &failure{text: host.Host + ": " + err.Error()}
	var (
		status     *statusError
		unexpected remoteerrors.ErrUnexpectedStatus
		large      *unpack.LimitError
		forbidden  *forbiddenError
		unusable   *rangeError
		cert       *tls.CertificateVerificationError
	)
	switch {
	case errors.As(err, &large):
		f.kind, f.text = errdefs.ErrResourceExhausted, host.Host+": "+large.Error()
	case errors.Is(err, ErrCorrupt):
		f.kind, f.corrupt = errdefs.ErrFailedPrecondition, true
	case errors.As(err, &forbidden):
		f.kind = errdefs.ErrPermissionDenied
	case errors.As(err, &status):
		f.kind, f.transient, f.retryAfter = errdefs.ErrUnavailable, true, status.retryAfter
		f.busy = status.code == http.StatusTooManyRequests || status.code == http.StatusServiceUnavailable
		f.failing = status.code >= http.StatusInternalServerError
	case errors.Is(err, docker.ErrInvalidAuthorization):
		f.kind = errdefs.ErrUnauthenticated
	case errors.Is(err, errRefused), errors.As(err, &unusable):
		f.kind = errdefs.ErrFailedPrecondition
	case errors.As(err, &unexpected):
		switch unexpected.StatusCode {
		case http.StatusUnauthorized:
			f.kind = errdefs.ErrUnauthenticated
		case http.StatusForbidden:
			f.kind = errdefs.ErrPermissionDenied
		case http.StatusNotFound:
			f.kind = errdefs.ErrNotFound
		default:
			f.kind = errdefs.ErrFailedPrecondition
		}
	case errors.As(err, &cert):
		f.kind = errdefs.ErrFailedPrecondition
	case errdefs.IsNotFound(err):
		f.kind = errdefs.ErrNotFound
	case errdefs.IsFailedPrecondition(err):
		f.kind = errdefs.ErrFailedPrecondition
	case errdefs.IsInvalidArgument(err), errdefs.IsNotImplemented(err):
		f.kind = errdefs.ErrInvalidArgument
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		f.kind = err
	default:
		f.kind, f.transient, f.unanswered = errdefs.ErrUnavailable, true, true
		var connection *connectionError
		if errors.As(err, &connection) {
			f.unreachable, f.slow = connection.dial, connection.slow
		} else {
			f.unreachable = isDial(err)
		}
	}
	f.text = r.told(host, f)
	if a, ok := host.Authorizer.(*authorizer); ok && a.withheld != "" && errdefs.IsUnauthorized(f.kind) {
		f.text += "; the credentials of this pull were not sent there: " + a.withheld
	}
	return f
}

// told is the text of a failure without secrets. A host may repeat them in what it answers.
func (r *Repository) told(host docker.RegistryHost, f *failure) string {
	own := []string{host.Host, r.name.String(), r.name.Name(), reference.Domain(r.name), reference.Path(r.name)}
	if tagged, ok := r.name.(reference.Tagged); ok {
		own = append(own, tagged.Tag())
	}
	text, ok := r.secret.hide(f.text, own...)
	if !ok {
		return fmt.Sprintf("%s: %v (all else that is known of it is left out, since a secret of this pull may be in it)",
			host.Host, f.kind)
	}
	return text
}

// statusError is an answer that asks for patience: 408, 429 and 5xx.
type statusError struct {
	code       int
	status     string
	method     string
	path       string
	retryAfter time.Duration
	said       string // by the registry; empty: nothing
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("%s %s: %s", e.method, e.path, e.status)
	if e.said != "" {
		text += " (" + e.said + ")"
	}
	if e.retryAfter > 0 {
		text += fmt.Sprintf(", the registry wants to be asked again after %v", e.retryAfter.Round(time.Second))
	}
	return text
}

// forbiddenError is the answer 403 to a HEAD. The host has been asked for its reason by GET, and is not asked again.
type forbiddenError struct {
	method, path, status string
	said                 string // by the registry; empty: nothing
}

func (e *forbiddenError) Error() string {
	text := fmt.Sprintf("%s %s: %s", e.method, e.path, e.status)
	if e.said != "" {
		text += " (" + e.said + ")"
	}
	return text
}

// tooLarge is the error of what is read into memory, and is beyond Config.MaxDocument.
func tooLarge(what string, limit int64) error {
	return limits.Beyond(what, limits.KeyDocument, uint64(limit), "bytes")
}

// connectionError hides a timeout or a cut connection from the library, which would try again at once, without a pause.
type connectionError struct {
	text string
	dial bool // the connection was not made
	slow bool // something comes, but too slowly
}

func (e *connectionError) Error() string { return e.text }

// isDial tells whether an error is that a connection was not made.
func isDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect")
}
