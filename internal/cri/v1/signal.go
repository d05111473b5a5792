package v1

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Real-time signals as libc numbers them: the kernel's first two are the threads library's own.
const (
	sigrtmin = syscall.Signal(34)
	sigrtmax = syscall.Signal(64)
)

// signalPrefix is before the usual name of a signal in that of the API.
const signalPrefix = "SIGNAL_"

// aliases are second names of signals.
var aliases = map[api.Signal]syscall.Signal{
	api.Signal_SIGNAL_SIGCLD:  syscall.SIGCHLD,
	api.Signal_SIGNAL_SIGIOT:  syscall.SIGABRT,
	api.Signal_SIGNAL_SIGPOLL: syscall.SIGIO,
}

// toSignal translates a signal; 0 is SIGNAL_RUNTIME_DEFAULT. From SIGRTMIN on, both sides count up by one to SIGRTMAX,
// except that the interface names SIGRTMIN+15 and SIGRTMAX-14, which follow each other.
func toSignal(c *check, p path, s api.Signal) syscall.Signal {
	switch {
	case s == api.Signal_SIGNAL_RUNTIME_DEFAULT:
		return 0
	case s >= api.Signal_SIGNAL_SIGRTMIN && s <= api.Signal_SIGNAL_SIGRTMAX:
		return sigrtmin + syscall.Signal(s-api.Signal_SIGNAL_SIGRTMIN)
	}
	if sig, ok := aliases[s]; ok {
		return sig
	}
	sig := unix.SignalNum(strings.TrimPrefix(s.String(), signalPrefix))
	if sig == 0 {
		c.Fail(p, "%s is not a signal of Linux", s)
	}
	return sig
}

// fromSignal is the reverse; of two names for one signal it takes the usual one.
func fromSignal(s syscall.Signal) api.Signal {
	if s >= sigrtmin && s <= sigrtmax {
		return api.Signal_SIGNAL_SIGRTMIN + api.Signal(s-sigrtmin)
	}
	return api.Signal(api.Signal_value[signalPrefix+unix.SignalName(s)])
}
