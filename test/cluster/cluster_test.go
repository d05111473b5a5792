package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"berth/internal/registrytest"
	"berth/test/cluster/host"
	"berth/test/kubernetes"
	"berth/test/node"
)

// cluster is a running cluster.
type cluster struct {
	name            string // the hosts' names are this and a digit
	dir             string
	programs        string // Berth's
	kubectlBinary   string
	admin           string // the kubeconfig of who may do all, for the machine
	ca, front       *authority
	control         *host.Host
	controlServices []*host.Service
	nodes           []*member
	registry        *registrytest.Registry
	listeners       []net.Listener
}

// registries are those that the cluster's images name.
var registries = []string{node.RegistryHost, "registry.k8s.io", "gcr.io"}

// network says which nodes have CNI plugins.
func network(kind string) (func(i int) bool, error) {
	kinds := map[string]func(int) bool{
		"bridge": func(int) bool { return false },
		"cni":    func(int) bool { return true },
		"mixed":  func(i int) bool { return i == 2 },
	}
	has, ok := kinds[kind]
	if !ok {
		return nil, fmt.Errorf("-network %s: it is bridge, cni or mixed", kind)
	}
	return has, nil
}

// newCluster brings a cluster up, with all nodes ready and DNS running.
func newCluster(ctx context.Context, cni func(int) bool) (*cluster, error) {
	var id [4]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, err
	}
	c := &cluster{name: "b" + hex.EncodeToString(id[:])[:7]}
	var err error
	if c.programs, err = node.Binaries(ctx); err != nil {
		return nil, err
	}
	if c.kubectlBinary, err = kubernetes.Kubectl.Build(ctx); err != nil {
		return nil, err
	}
	if c.dir, err = os.MkdirTemp("", c.name); err != nil {
		return nil, err
	}
	if err := os.Chmod(c.dir, 0o755); err != nil {
		return c, err
	}
	if err := c.startControl(ctx); err != nil {
		return c, err
	}
	if err := c.startRegistry(ctx); err != nil {
		return c, err
	}
	for i := 1; i <= nodeCount; i++ {
		m, err := c.newMember(ctx, i, cni(i))
		if err != nil {
			return c, err
		}
		c.nodes = append(c.nodes, m)
	}
	var wait sync.WaitGroup
	booted := make([]error, len(c.nodes))
	for i, m := range c.nodes {
		wait.Go(func() { booted[i] = m.boot(ctx) })
	}
	wait.Wait()
	if err := errors.Join(booted...); err != nil {
		return c, err
	}
	for _, m := range c.nodes {
		if err := c.nodeReady(ctx, m.name); err != nil {
			return c, fmt.Errorf("%w\n%s", err, m.tails())
		}
	}
	if _, err := c.kubectl(ctx, dnsManifest, "apply", "-f", "-"); err != nil {
		return c, err
	}
	_, err = c.kubectl(ctx, "", "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=2m")
	return c, err
}

// nodeReady waits until a node is ready.
func (c *cluster) nodeReady(ctx context.Context, name string) error {
	_, err := c.kubectl(ctx, "", "wait", "node/"+name, "--for=condition=Ready",
		fmt.Sprintf("--timeout=%v", node.Patience(2*time.Minute)))
	return err
}

// forwardAPI makes the API server answer on loopback of the machine, and writes the administrator's kubeconfig for it.
func (c *cluster) forwardAPI() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	c.listeners = append(c.listeners, listener)
	go host.Forward(listener, func() (net.Conn, error) { return c.control.Dial(context.Background(), "tcp", apiAddress) })
	c.admin, err = c.ca.kubeconfig("admin", "https://"+listener.Addr().String(), "admin", "system:masters")
	return err
}

// startRegistry serves the images on loopback of the machine, and on the control plane's address to the nodes.
func (c *cluster) startRegistry(ctx context.Context) error {
	var err error
	if c.registry, err = node.NewRegistry(); err != nil {
		return err
	}
	if err := pushImages(ctx, c.registry); err != nil {
		return err
	}
	listener, err := c.control.Listen("tcp", registryAddr)
	if err != nil {
		return err
	}
	c.listeners = append(c.listeners, listener)
	go host.Forward(listener, func() (net.Conn, error) { return net.Dial("tcp", c.registry.Addr()) })
	return nil
}

// end takes the cluster down: nothing of it is left.
func (c *cluster) end() error {
	var errs []error
	for _, m := range c.nodes {
		if m.host != nil {
			errs = append(errs, m.host.End())
		}
	}
	if c.control != nil {
		errs = append(errs, c.control.End())
	}
	for _, listener := range c.listeners {
		errs = append(errs, listener.Close())
	}
	if c.registry != nil {
		errs = append(errs, c.registry.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// kubectl runs kubectl as the administrator.
func (c *cluster) kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.kubectlBinary, append([]string{"--kubeconfig=" + c.admin}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+filepath.Join(c.dir, "home")) // its cache of what the API server offers
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		said := bytes.TrimSpace(stderr.Bytes())
		return stdout.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, said)
	}
	return stdout.String(), nil
}

// dnsManifest is CoreDNS, as clusters have it.
const dnsManifest = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: coredns, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: system:coredns}
rules:
- {apiGroups: [""], resources: [endpoints, services, pods, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: system:coredns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:coredns}
subjects: [{kind: ServiceAccount, name: coredns, namespace: kube-system}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system}
data:
  Corefile: |
    .:53 {
        errors
        health
        ready
        kubernetes ` + domain + ` in-addr.arpa {
            pods insecure
            ttl 5
        }
        cache 5
    }
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec:
  replicas: 2
  selector: {matchLabels: {k8s-app: kube-dns}}
  template:
    metadata: {labels: {k8s-app: kube-dns}}
    spec:
      serviceAccountName: coredns
      dnsPolicy: Default
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: ScheduleAnyway
        labelSelector: {matchLabels: {k8s-app: kube-dns}}
      containers:
      - name: coredns
        image: ` + dnsImage + `
        args: [-conf, /etc/coredns/Corefile]
        ports: [{name: dns, containerPort: 53, protocol: UDP}, {name: dns-tcp, containerPort: 53, protocol: TCP}]
        volumeMounts: [{name: config, mountPath: /etc/coredns, readOnly: true}]
        livenessProbe: {httpGet: {path: /health, port: 8080}, timeoutSeconds: 5}
        readinessProbe: {httpGet: {path: /ready, port: 8181}, timeoutSeconds: 5}
        securityContext:
          allowPrivilegeEscalation: false
          capabilities: {add: [NET_BIND_SERVICE], drop: [ALL]}
          readOnlyRootFilesystem: true
      volumes: [{name: config, configMap: {name: coredns}}]
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec:
  clusterIP: ` + dnsService + `
  selector: {k8s-app: kube-dns}
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
`
