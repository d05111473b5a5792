package verifier

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/jail/wire"
	"berth/internal/liblog"
	"berth/internal/metrics"
	"berth/internal/model"
)

// Config says which programs are run, and how.
type Config struct {
	Dir string // absolute; each file in it is a verifier
	// Max is how many programs Dir may have; negative: any number.
	Max     int
	Timeout time.Duration // of each
	Env     []string      // what programs have in their environment besides PATH and HOME
	Metrics *metrics.Set  // nil: nothing is measured
	Log     *slog.Logger
}

// Verifiers are the programs in a directory, which is read at each call. Its methods may be called concurrently.
type Verifiers struct{ cfg Config }

// New does not look at the directory.
func New(cfg Config) *Verifiers { return &Verifiers{cfg} }

// Report says which verifiers there are, for people.
type Report struct {
	Directory string   `json:"directory"`
	Programs  []string `json:"programs"`
	// Failure is why no image can be verified, and so none is pulled.
	Failure string `json:"failure,omitempty"`
}

// Report looks at the directory. It is nil where v is.
func (v *Verifiers) Report() *Report {
	if v == nil {
		return nil
	}
	r := &Report{Directory: v.cfg.Dir}
	programs, err := Programs(v.cfg.Dir, v.cfg.Max)
	if err != nil {
		r.Failure = err.Error()
	}
	for _, p := range programs {
		r.Programs = append(r.Programs, p.Name)
	}
	return r
}

// maxReason bounds what an error says of a verifier's reason, and a line of the log of its stderr, in bytes.
const maxReason = 1 << 10

// Verify has all verifiers look at the image that a name stands for, in the order of their names, until one rejects
// it. A nil error says that all have accepted it. Other errors are *model.UnverifiedError, and the context's where it
// has ended. Of the descriptor, programs are told the media type, the digest and the size.
func (v *Verifiers) Verify(ctx context.Context, name string, image ocispec.Descriptor) error {
	refuse := func(format string, args ...any) error {
		return &model.UnverifiedError{Digest: image.Digest.String(), Reason: fmt.Sprintf(format, args...)}
	}
	programs, err := Programs(v.cfg.Dir, v.cfg.Max)
	if err != nil {
		return refuse("%v", err)
	}
	stdin, err := json.Marshal(ocispec.Descriptor{MediaType: image.MediaType, Digest: image.Digest, Size: image.Size})
	if err != nil {
		return refuse("%v", err)
	}
	stdin = append(stdin, '\n')
	args := []string{"-name", name, "-digest", image.Digest.String(), "-stdin-media-type", ocispec.MediaTypeDescriptor}
	for _, program := range programs {
		begin := time.Now()
		answer, err := v.run(ctx, program, args, stdin)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		took := time.Since(begin)
		log := v.cfg.Log.With("image", name, "digest", image.Digest.String(), "plugin", program.Name,
			"took_ms", liblog.Milliseconds(took))
		if answer != nil {
			log = log.With("reason", answer.reason, "stderr", answer.stderr)
		}
		result, unverified := metrics.VerifierAccepted, &model.UnverifiedError{
			Digest: image.Digest.String(), Verifier: program.Name,
		}
		switch {
		case err != nil:
			result, unverified.Reason = metrics.VerifierFailed, err.Error()
			log.Warn("an image verifier failed: the image is not pulled", "error", err)
		case answer.code != 0:
			result, unverified.Rejected, unverified.Reason = metrics.VerifierRejected, true, answer.why()
			log.Warn("an image verifier rejected an image: it is not pulled", "code", answer.code)
		default:
			log.Debug("an image verifier accepted an image")
		}
		v.cfg.Metrics.Verifier(program.Name, result, took)
		if result != metrics.VerifierAccepted {
			return unverified
		}
	}
	return nil
}

// answer is what a program that has ended by itself says.
type answer struct {
	code           int
	reason, stderr string // printable, in one line
}

// why is the reason for a rejection.
func (a *answer) why() string {
	text := fmt.Sprintf("exit code %d", a.code)
	if a.reason != "" {
		text = a.reason + " (" + text + ")"
	}
	return text
}

// line makes one line of text that a program has written. cut says that it had more to say.
func line(text []byte, cut bool) string {
	s := wire.Printable(strings.Join(strings.Fields(string(text)), " "), maxReason)
	if cut && !strings.HasSuffix(s, "...") {
		s += "..."
	}
	return s
}
