package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"berth/test/cluster/host"
	"berth/test/kubernetes"
)

// The cluster's addresses. The hosts' networks are their own, so that these may be in use elsewhere on the machine.
const (
	controlAddress = "10.203.0.1"
	apiAddress     = controlAddress + ":6443"
	apiURL         = "https://" + apiAddress
	registryAddr   = controlAddress + ":5000"
	nodeRange      = "10.203.0.0/24"
	podRange       = "10.204.0.0/16"
	serviceRange   = "10.205.0.0/16"
	firstService   = "10.205.0.1" // the API server's
	dnsService     = "10.205.0.10"
	domain         = "cluster.local"
)

// startControl starts the control plane on its host and waits until the API server is ready.
func (c *cluster) startControl(ctx context.Context) error {
	dir := filepath.Join(c.dir, "control")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var err error
	c.control, err = host.Start(ctx, host.Options{
		Name: c.name + "0", Hostname: "control", Dir: dir, Binds: []host.Bind{c.pkiBind()}, Sysctls: tunables,
	})
	if err != nil {
		return err
	}
	if err := c.control.Switch(controlAddress + "/24"); err != nil {
		return err
	}
	if _, err := c.control.Run(ctx, "sysctl", "-qw", "net.ipv4.ip_forward=1"); err != nil {
		return err
	}
	for i := 1; i <= nodeCount; i++ { // pods answer the API server, and it calls webhooks in pods
		if err := c.control.Route(podsOf(i), addressOf(i)); err != nil {
			return err
		}
	}
	if err := c.issueControl(); err != nil {
		return err
	}
	start := func(p kubernetes.Program, args ...string) error {
		path, err := p.Build(ctx)
		if err != nil {
			return err
		}
		s, err := c.control.Service(p.Name(), append([]string{path}, args...)...)
		c.controlServices = append(c.controlServices, s)
		return err
	}
	if err := start(kubernetes.Etcd, "--data-dir="+filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380"); err != nil {
		return err
	}
	if err := start(kubernetes.APIServer,
		"--advertise-address="+controlAddress, "--secure-port=6443", "--etcd-servers=http://127.0.0.1:2379",
		"--service-cluster-ip-range="+serviceRange, "--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged", "--client-ca-file="+c.ca.path("ca"),
		"--tls-cert-file="+c.ca.path("apiserver"), "--tls-private-key-file="+c.ca.keyPath("apiserver"),
		"--kubelet-client-certificate="+c.ca.path("to-kubelets"), "--kubelet-client-key="+c.ca.keyPath("to-kubelets"),
		"--kubelet-certificate-authority="+c.ca.path("ca"), "--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc."+domain,
		"--service-account-key-file="+c.ca.keyPath("accounts"),
		"--service-account-signing-key-file="+c.ca.keyPath("accounts"),
		"--requestheader-client-ca-file="+c.front.path("front"), "--requestheader-allowed-names=front-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file="+c.front.path("front-client"), "--proxy-client-key-file="+c.front.keyPath("front-client"),
		// There is no kube-proxy on this host: extensions and webhooks are called at their pods' addresses.
		"--enable-aggregator-routing",
		// A node that is gone has its pods replaced within the time of a test.
		"--default-not-ready-toleration-seconds=30", "--default-unreachable-toleration-seconds=30",
	); err != nil {
		return err
	}
	if err := c.forwardAPI(); err != nil {
		return err
	}
	if err := within(2*time.Minute, "the API server is ready", func() error {
		_, err := c.kubectl(ctx, "", "get", "--raw", "/readyz")
		return err
	}); err != nil {
		return fmt.Errorf("%w\n%s", err, c.controlServices[1].Tail())
	}
	manager, err := c.ca.kubeconfig("manager", apiURL, "system:kube-controller-manager")
	if err != nil {
		return err
	}
	if err := start(kubernetes.ControllerManager, "--kubeconfig="+manager, "--authentication-kubeconfig="+manager,
		"--authorization-kubeconfig="+manager, "--leader-elect=false", "--use-service-account-credentials",
		"--root-ca-file="+c.ca.path("ca"), "--service-account-private-key-file="+c.ca.keyPath("accounts"),
		"--cluster-signing-cert-file="+c.ca.path("ca"), "--cluster-signing-key-file="+c.ca.keyPath("ca"),
		"--node-monitor-grace-period=20s",
	); err != nil {
		return err
	}
	scheduler, err := c.ca.kubeconfig("scheduler", apiURL, "system:kube-scheduler")
	if err != nil {
		return err
	}
	return start(kubernetes.Scheduler, "--kubeconfig="+scheduler, "--authentication-kubeconfig="+scheduler,
		"--authorization-kubeconfig="+scheduler, "--leader-elect=false")
}

// pki is the directory of all certificates and keys.
func (c *cluster) pki() string { return filepath.Join(c.dir, "pki") }

// pkiBind shows it on a host at the same path: each has a /tmp of its own, which hides the machine's.
func (c *cluster) pkiBind() host.Bind { return host.Bind{From: c.pki(), At: c.pki()} }

// issueControl makes the authorities and the certificates of the control plane.
func (c *cluster) issueControl() error {
	dir := c.pki()
	var err error
	if c.ca, err = newAuthority(dir, "ca"); err != nil {
		return err
	}
	if c.front, err = newAuthority(dir, "front"); err != nil {
		return err
	}
	if err := c.front.issue("front-client", "front-client", nil, nil); err != nil {
		return err
	}
	if err := c.ca.issue("apiserver", "kube-apiserver", nil, []string{
		controlAddress, firstService, "127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc." + domain,
	}); err != nil {
		return err
	}
	// The key that service accounts' tokens are signed with needs no certificate; it is made with one all the same.
	if err := c.ca.issue("accounts", "service-accounts", nil, nil); err != nil {
		return err
	}
	return c.ca.issue("to-kubelets", "kube-apiserver-kubelet-client", []string{"system:masters"}, nil)
}
