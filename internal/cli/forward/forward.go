// Package forward joins ports of this machine to ports of a pod. Each connection has a stream of its own to the
// runtime, so that one to a port at which nothing listens ends no other, and a restart of the runtime ends none that
// comes after it.
package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
)

// Port is a port of a pod, and the one of this machine that stands for it.
type Port struct {
	Local  uint16 // 0: any that is free
	Remote uint16
}

// ParsePort reads LOCAL:REMOTE, :REMOTE or REMOTE, which stands for both.
func ParsePort(text string) (Port, error) {
	local, remote, both := strings.Cut(text, ":")
	if !both {
		remote = local
	}
	var p Port
	for _, one := range []struct {
		text string
		to   *uint16
		zero bool
	}{{remote, &p.Remote, false}, {local, &p.Local, both}} {
		if one.text == "" && one.zero {
			continue
		}
		n, err := strconv.ParseUint(one.text, 10, 16)
		if err != nil || n == 0 && !one.zero {
			return Port{}, fmt.Errorf("%q is no port or pair of ports: give REMOTE, LOCAL:REMOTE or :REMOTE", text)
		}
		*one.to = uint16(n)
	}
	return p, nil
}

// Forwarder serves connections until its context ends.
type Forwarder struct {
	// Dial opens a connection for one stream of portforward.PortForwardProtocolV1Name.
	Dial func(ctx context.Context) (httpstream.Connection, error)
	Pod  string    // as messages name it
	Out  io.Writer // what is forwarded
	Err  io.Writer // why a connection has failed

	mu sync.Mutex // guards Out and Err
}

// Run listens at the addresses of this machine, says so, and forwards. "localhost" is the loopback of both families;
// one of them may be missing.
func (f *Forwarder) Run(ctx context.Context, addresses []string, ports []Port) error {
	var list []listening
	defer func() {
		for _, l := range list {
			l.Close()
		}
	}()
	for _, port := range ports {
		opened, err := listen(ctx, addresses, port)
		list = append(list, opened...)
		if err != nil {
			return err
		}
	}
	for _, l := range list {
		f.say(f.Out, "Forwarding from %s -> %d\n", l.Addr(), l.remote)
	}
	group, ctx := errgroup.WithContext(ctx)
	var connections sync.WaitGroup
	for _, l := range list {
		stop := context.AfterFunc(ctx, func() { l.Close() })
		defer stop()
		group.Go(func() error {
			for {
				conn, err := l.Accept()
				if ctx.Err() != nil {
					return nil
				}
				if err != nil {
					return fmt.Errorf("port %s: %w", l.Addr(), err)
				}
				connections.Go(func() {
					if err := f.serve(ctx, conn, l.remote); err != nil && ctx.Err() == nil {
						f.say(f.Err, "%v\n", err)
					}
				})
			}
		})
	}
	err := group.Wait()
	connections.Wait()
	return err
}

func (f *Forwarder) say(w io.Writer, format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fmt.Fprintf(w, format, args...)
}

type listening struct {
	net.Listener
	remote uint16
}

// listen opens a port at all addresses, with the same number at each.
func listen(ctx context.Context, addresses []string, port Port) ([]listening, error) {
	var list []listening
	local := port.Local
	for _, address := range addresses {
		hosts, optional := []string{address}, false
		if address == "localhost" {
			hosts, optional = []string{"127.0.0.1", "::1"}, true
		}
		var first error
		opened := 0
		for _, host := range hosts {
			var config net.ListenConfig
			l, err := config.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(local))))
			if err != nil {
				first = errors.Join(first, err)
				continue
			}
			opened++
			if at, ok := l.Addr().(*net.TCPAddr); ok {
				local = uint16(at.Port)
			}
			list = append(list, listening{l, port.Remote})
		}
		if first != nil && !(optional && opened > 0) {
			return list, first
		}
	}
	return list, nil
}

// serve joins one connection to a port of the pod.
func (f *Forwarder) serve(ctx context.Context, conn net.Conn, port uint16) error {
	defer conn.Close()
	streams, err := f.Dial(ctx)
	if err != nil {
		return fmt.Errorf("port %d of %s: %w", port, f.Pod, err)
	}
	defer streams.Close()
	defer context.AfterFunc(ctx, func() { streams.Close(); conn.Close() })()
	headers := http.Header{}
	headers.Set(corev1.PortHeader, strconv.Itoa(int(port)))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	problem, err := streams.CreateStream(headers)
	if err != nil {
		return fmt.Errorf("port %d of %s: %w", port, f.Pod, err)
	}
	problem.Close() // nothing is written to it
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := streams.CreateStream(headers)
	if err != nil {
		return fmt.Errorf("port %d of %s: %w", port, f.Pod, err)
	}
	told := make(chan string, 1)
	go func() {
		message, _ := io.ReadAll(io.LimitReader(problem, 64<<10))
		told <- string(message)
	}()
	go func() {
		_, _ = io.Copy(data, conn)
		data.Close() // the pod's side reads the end, and may go on writing
	}()
	_, _ = io.Copy(conn, data)
	_ = data.Reset()
	if message := <-told; message != "" {
		return f.because(port, message)
	}
	return nil
}

// because words what the runtime says of a connection.
func (f *Forwarder) because(port uint16, message string) error {
	if strings.Contains(message, "connection refused") {
		return fmt.Errorf("nothing listens at port %d of %s", port, f.Pod)
	}
	return fmt.Errorf("port %d of %s: %s", port, f.Pod, message)
}

// Protocol is what a connection of Dial speaks.
const Protocol = portforward.PortForwardProtocolV1Name
