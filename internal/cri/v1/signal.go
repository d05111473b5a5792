package v1

import (
	"syscall"

	"golang.org/x/sys/unix"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Real-time signals as libc numbers them: the kernel's first two are the threads library's own.
const (
	sigrtmin = syscall.Signal(34)
	sigrtmax = syscall.Signal(64)
)

// aliases are second names of signals.
var aliases = map[api.Signal]syscall.Signal{
	api.Signal_SIGCLD:  syscall.SIGCHLD,
	api.Signal_SIGIOT:  syscall.SIGABRT,
	api.Signal_SIGPOLL: syscall.SIGIO,
}

// toSignal translates a signal; 0 is RUNTIME_DEFAULT. From SIGRTMIN on, both sides count up by one to SIGRTMAX,
// except that the interface names SIGRTMIN+15 and SIGRTMAX-14, which follow each other.
func toSignal(c *check, p path, s api.Signal) syscall.Signal {
	switch {
	case s == api.Signal_RUNTIME_DEFAULT:
		return 0
	case s >= api.Signal_SIGRTMIN && s <= api.Signal_SIGRTMAX:
		return sigrtmin + syscall.Signal(s-api.Signal_SIGRTMIN)
	}
	if sig, ok := aliases[s]; ok {
		return sig
	}
	sig := unix.SignalNum(s.String())
	if sig == 0 {
		c.Fail(p, "%s is not a signal of Linux", s)
	}
	return sig
}

// fromSignal is the reverse; of two names for one signal it takes the usual one.
func fromSignal(s syscall.Signal) api.Signal {
	if s >= sigrtmin && s <= sigrtmax {
		return api.Signal_SIGRTMIN + api.Signal(s-sigrtmin)
	}
	return api.Signal(api.Signal_value[unix.SignalName(s)])
}
