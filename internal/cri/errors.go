package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/disk"
	"berth/internal/model"
)

// ExitError is a command of a call that streams, which ended with another code than 0.
type ExitError struct{ Code int }

func (e *ExitError) Error() string {
	return fmt.Sprintf("command terminated with exit code %d", e.Code)
}

// ExitReason and ExitCode are where clients find the code: the reason of a google.rpc.ErrorInfo and a key
// of its metadata.
const (
	ExitReason = "EXIT_CODE"
	ExitCode   = "exit_code"
)

// status has the code Aborted. An exec of which nobody knows whether its command has run has that code too: only the
// detail, whose reason is ExitReason, tells the two apart.
func (e *ExitError) status() error {
	st, err := status.New(codes.Aborted, e.Error()).WithDetails(&errdetails.ErrorInfo{
		Reason: ExitReason, Domain: "berth", Metadata: map[string]string{ExitCode: strconv.Itoa(e.Code)},
	})
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return st.Err()
}

// commandFailed tells whether a status is that of an ExitError.
func commandFailed(st *status.Status) bool {
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetReason() == ExitReason {
			return true
		}
	}
	return false
}

// PullError is the error of a pull for a kubelet, which shows ErrImagePull as the reason of a container unless the text
// begins with another word. See Status.
type PullError struct{ Err error }

func (e *PullError) Error() string { return e.Err.Error() }

func (e *PullError) Unwrap() error { return e.Err }

// Status gives an error the gRPC code that clients act on. It is called once, by the server's interceptors.
// An error that names no class is Internal: Unknown tells a client nothing. But only with Unknown, a kubelet takes the
// word at the beginning of a text for a pod's status: see evalCRIPullErr in the kubelet's image manager, and
// remoteImageService in k8s.io/cri-client.
func Status(err error) error {
	if err == nil {
		return nil
	}
	var exit *ExitError
	if errors.As(err, &exit) {
		return exit.status()
	}
	var unverified *model.UnverifiedError
	if errors.As(err, &unverified) {
		return status.Errorf(codes.Unknown, "%s: %s", crierrors.ErrSignatureValidationFailed, err)
	}
	var pull *PullError
	if errors.As(err, &pull) && errors.Is(err, model.ErrRegistryUnavailable) {
		return status.Errorf(codes.Unknown, "%s: %s", crierrors.ErrRegistryUnavailable, err)
	}
	st := status.Convert(errgrpc.ToGRPC(err))
	if st.Code() != codes.Unknown {
		// Details are left out: they repeat the chain of wrapped errors, which the message has already.
		return status.Error(st.Code(), st.Message())
	}
	return status.Error(kernelCode(err), err.Error())
}

// kernelCode classifies what the domain passed on as the kernel said it.
func kernelCode(err error) codes.Code {
	switch {
	case disk.Full(err), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOMEM):
		return codes.ResourceExhausted
	case errdefs.IsDeadlineExceeded(err), errors.Is(err, syscall.ETIMEDOUT):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	case errors.Is(err, fs.ErrPermission):
		return codes.PermissionDenied
	}
	return codes.Internal
}
