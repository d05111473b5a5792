package cri

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/internal/keeper"
)

// Status gives an error the gRPC code that clients act on. It is called once, by the server's interceptors. An error that
// names no class is Internal: Unknown tells a client nothing.
func Status(err error) error {
	if err == nil {
		return nil
	}
	// It wraps NotFound where the program is not in the image, which a client would take for the container being gone.
	var start *keeper.StartError
	if errors.As(err, &start) {
		return status.Error(codes.FailedPrecondition, err.Error())
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
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EMFILE),
		errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOMEM):
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
