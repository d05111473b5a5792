package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"

	"berth/internal/network/bridge"
	"berth/internal/network/cni"
	"berth/internal/undo"
)

// Reasons of a Status that is not ready.
const (
	ReasonCNIConfiguration = "CNIConfigurationInvalid" // there are only broken files
	ReasonNoCNI            = "CNIConfigurationMissing" // there is no file, and Config.RequireCNI asks for one
	ReasonCNIPlugin        = "CNIPluginNotReady"       // the plugins say so
	ReasonNoPodCIDR        = "PodCIDRMissing"          // there is no range, and Config.RequirePodCIDR asks for one
	ReasonBridge           = "BridgeNotReady"
)

// errNoCNI is the error on a node on which the pods of its network provider have not written a CNI configuration yet.
var errNoCNI = fmt.Errorf("there is no CNI configuration, which network.require_cni asks for: %w",
	errdefs.ErrUnavailable)

// errNoPodCIDR is the error on a node whose pods the built-in bridge connects, before its kubelet has a range for them.
var errNoPodCIDR = fmt.Errorf("the kubelet has sent no range of addresses for pods, which network.require_pod_cidr "+
	"asks for: %w", errdefs.ErrUnavailable)

type provider struct {
	cfg    Config
	log    *slog.Logger
	bridge *bridge.Bridge
	cni    *cni.Networks

	mu      sync.Mutex
	current cni.Selection // what new pods get: a CNI network, or the bridge where Network is nil
	decided bool          // current has been chosen
	cidrs   []netip.Prefix
}

// New reads the records on disk. It changes nothing on the node: Reconcile and the first Setup do.
func New(cfg Config) (Provider, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.StateDir == "" {
		return nil, fmt.Errorf("network: no directory for records: %w", errdefs.ErrInvalidArgument)
	}
	if len(cfg.CNIBinDirs) == 0 {
		cfg.CNIBinDirs = []string{"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"}
	}
	if cfg.CNICacheDir == "" {
		cfg.CNICacheDir = filepath.Join(cfg.StateDir, "cni-cache")
	}
	if cfg.Bridge == "" {
		cfg.Bridge = "berth0"
	}
	p := &provider{cfg: cfg, log: cfg.Logger}
	var err error
	p.bridge, err = bridge.Open(bridge.Config{
		Name: cfg.Bridge, CIDRs: cfg.PodCIDRs, MTU: cfg.MTU, NonMasquerade: cfg.NonMasquerade,
		StateDir:   filepath.Join(cfg.StateDir, "bridge"),
		Background: true, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	p.cni, err = cni.Open(cni.Config{
		ConfDir: cfg.CNIConfDir, Network: cfg.CNINetwork, BinDirs: cfg.CNIBinDirs, CacheDir: cfg.CNICacheDir,
		StateDir: filepath.Join(cfg.StateDir, "cni"), Logger: cfg.Logger, Metrics: cfg.Metrics,
	})
	if err != nil {
		return nil, errors.Join(err, p.bridge.Close())
	}
	p.cidrs = p.bridge.NodeCIDRs()
	return p, nil
}

// choose returns the network for new pods: a CNI network, or the bridge (Network is nil). If the directory has only
// broken files, the previous choice is kept. If there is no previous choice, the error says that there is no network.
// broken says which files were skipped, and why.
func (p *provider) choose() (network cni.Selection, broken string, err error) {
	found := p.cni.Selected()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cfg.RequireCNI && found.Empty() {
		p.current, p.decided = cni.Selection{}, false
		return cni.Selection{}, "", fmt.Errorf("%s: %w", p.cfg.CNIConfDir, errNoCNI)
	}
	if found.Network != nil || found.Empty() {
		p.current, p.decided = found, true
	}
	if !p.decided {
		return cni.Selection{}, "", fmt.Errorf("no network configuration is valid: %s: %w", found.Reason(),
			errdefs.ErrUnavailable)
	}
	if p.cfg.RequirePodCIDR && p.current.Network == nil && len(p.cidrs) == 0 {
		return cni.Selection{}, "", errNoPodCIDR
	}
	return p.current, found.Reason(), nil
}

func (p *provider) Setup(ctx context.Context, pod *Pod) (*Result, error) {
	if err := checkID(pod.ID); err != nil {
		return nil, err
	}
	if pod.NetNS == "" {
		return nil, fmt.Errorf("pod %s: it has no network namespace: %w", pod.ID, errdefs.ErrInvalidArgument)
	}
	if err := bridge.ValidatePorts(pod.Ports); err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	network, _, err := p.choose()
	if err != nil {
		return nil, err
	}
	var result *Result
	if network.Network != nil {
		result, err = p.setupCNI(ctx, network, pod)
	} else {
		result, err = p.setupBridge(ctx, pod)
	}
	if err == nil && pod.Before != nil && !slices.Equal(result.IPs, pod.before()) {
		err = fmt.Errorf("it had %v, and would be given %v: %w", pod.before(), result.IPs, errdefs.ErrFailedPrecondition)
		undoing, cancel := undo.Context(ctx)
		defer cancel()
		err = errors.Join(err, p.Teardown(undoing, pod))
	}
	if err != nil {
		return nil, fmt.Errorf("network of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return result, nil
}

func (p *provider) Expect(ctx context.Context) {
	if network, _, err := p.choose(); err == nil && network.Network == nil {
		p.bridge.Expect(ctx)
	}
}

func (p *provider) Prepare(ctx context.Context, pod *Pod) error {
	if err := checkID(pod.ID); err != nil {
		return err
	}
	network, _, err := p.choose()
	if err != nil || network.Network != nil { // plugins are told of pods, which there are none of yet
		return err
	}
	return p.bridge.Prepare(ctx, endpoint(pod))
}

// before returns the addresses that the pod had, and has to get again.
func (p *Pod) before() []netip.Addr {
	if p.Before == nil {
		return nil
	}
	return p.Before.IPs
}

func (p *provider) setupCNI(ctx context.Context, network cni.Selection, pod *Pod) (*Result, error) {
	if err := p.bridge.Detach(ctx, pod.ID); err != nil {
		return nil, err
	}
	got, err := p.cni.Add(ctx, network.Network, p.attachment(pod))
	if err != nil {
		return nil, err
	}
	return &Result{IPs: got.IPs, Interface: cni.Interface, CNI: got.Raw}, nil
}

// attachment translates a pod for package cni.
func (p *provider) attachment(pod *Pod) cni.Attachment {
	p.mu.Lock()
	cidrs := p.cidrs
	p.mu.Unlock()
	return cni.Attachment{
		ID: pod.ID, Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, NetNS: pod.NetNS, Ports: pod.Ports,
		Annotations: pod.Annotations, CgroupParent: pod.CgroupParent, DNS: pod.DNS, CIDRs: cidrs,
		Before: pod.before(),
	}
}

// endpoint translates a pod for package bridge.
func endpoint(pod *Pod) bridge.Endpoint {
	return bridge.Endpoint{
		ID: pod.ID, Pod: pod.Namespace + "/" + pod.Name, NetNS: pod.NetNS, Ports: pod.Ports, Addresses: pod.before(),
		Sysctls: pod.Sysctls,
	}
}

func (p *provider) setupBridge(ctx context.Context, pod *Pod) (*Result, error) {
	if err := p.cni.Del(ctx, pod.ID); err != nil {
		return nil, err
	}
	for key := range pod.Annotations {
		if key == "kubernetes.io/ingress-bandwidth" || key == "kubernetes.io/egress-bandwidth" {
			return nil, fmt.Errorf("annotation %s: the built-in bridge does not limit bandwidth; CNI's bandwidth plugin "+
				"does: %w", key, errdefs.ErrNotImplemented)
		}
	}
	addrs, err := p.bridge.Attach(ctx, endpoint(pod))
	if err != nil {
		return nil, err
	}
	return &Result{IPs: addrs, Interface: bridge.Interface}, nil
}

func (p *provider) Teardown(ctx context.Context, pod *Pod) error {
	return p.tearDown(ctx, pod, p.cni.Del)
}

func (p *provider) Forget(ctx context.Context, pod *Pod) error {
	return p.tearDown(ctx, pod, p.cni.Forget)
}

func (p *provider) tearDown(ctx context.Context, pod *Pod, del func(context.Context, string) error) error {
	if err := checkID(pod.ID); err != nil {
		return err
	}
	if err := errors.Join(p.bridge.Detach(ctx, pod.ID), del(ctx, pod.ID)); err != nil {
		return fmt.Errorf("network of pod %s: %w", pod.ID, err)
	}
	return nil
}

func (p *provider) NeedsNetNS(id string) bool { return p.cni.Has(id) }

func (p *provider) Leave(ctx context.Context, id string) error {
	if err := p.cni.Del(ctx, id); err != nil {
		return fmt.Errorf("network of pod %s: %w", id, err)
	}
	return nil
}

func (p *provider) Status(ctx context.Context) Status {
	network, broken, err := p.choose()
	switch {
	case errors.Is(err, errNoCNI):
		return Status{Reason: ReasonNoCNI, Message: err.Error()}
	case errors.Is(err, errNoPodCIDR):
		return Status{Reason: ReasonNoPodCIDR, Message: err.Error()}
	case err != nil:
		return Status{Reason: ReasonCNIConfiguration, Message: err.Error()}
	}
	if broken != "" {
		broken = "passed over: " + broken
	}
	if network.Network != nil {
		if err := p.cni.Status(ctx, network); err != nil {
			return Status{Reason: ReasonCNIPlugin, Message: err.Error()}
		}
		return Status{Ready: true, Message: broken}
	}
	if err := p.bridge.Health(); err != nil {
		return Status{Reason: ReasonBridge, Message: err.Error()}
	}
	if warning := p.bridge.Warning(); warning != "" {
		broken = strings.TrimPrefix(broken+"; "+warning, "; ")
	}
	return Status{Ready: true, Message: broken}
}

func (p *provider) Reconcile(ctx context.Context, live []*Pod) (lost map[string]error, err error) {
	ends, alive := map[string]bridge.Endpoint{}, map[string]bool{}
	lost = map[string]error{}
	for _, pod := range live {
		alive[pod.ID] = true
		switch {
		case p.bridge.Has(pod.ID):
			ends[pod.ID] = endpoint(pod)
		case p.byCNI(pod):
			network, _, err := p.choose()
			if err != nil {
				p.log.Warn("choose the network of pods", "error", err)
			}
			var result json.RawMessage
			if pod.Before != nil {
				result = pod.Before.CNI
			}
			if err := p.cni.Restore(network.Network, p.attachment(pod), result); err != nil {
				lost[pod.ID] = err
			}
		default:
			ends[pod.ID] = endpoint(pod)
		}
	}
	lostEnds, err := p.bridge.Reconcile(ctx, ends)
	maps.Copy(lost, lostEnds)
	return lost, errors.Join(err, p.cni.Reconcile(alive))
}

func (p *provider) Collect(ctx context.Context) error { return p.cni.Collect(ctx) }

// byCNI tells whether CNI plugins have set up the network of a pod of which the bridge has no record. If package cni
// has no record either, a cached result of the plugins or an interface of the bridge decides, and otherwise the choice
// for new pods.
func (p *provider) byCNI(pod *Pod) bool {
	switch {
	case p.cni.Has(pod.ID), p.cni.Cached(pod.ID), pod.Before != nil && pod.Before.CNI != nil:
		return true
	case p.bridge.HasInterface(pod.ID):
		return false
	}
	network, _, err := p.choose()
	return p.cfg.RequireCNI || err == nil && network.Network != nil
}

func (p *provider) SetPodCIDR(ctx context.Context, cidr string) error {
	if cidr == "" {
		return nil // the cluster has not given the node a range
	}
	var cidrs []netip.Prefix
	for part := range strings.SplitSeq(cidr, ",") {
		c, err := netip.ParsePrefix(strings.TrimSpace(part))
		if err != nil {
			return fmt.Errorf("pod CIDR %q: %w: %w", cidr, err, errdefs.ErrInvalidArgument)
		}
		cidrs = append(cidrs, c)
	}
	if err := bridge.CheckCIDRs(cidrs); err != nil {
		return err
	}
	network, _, err := p.choose()
	withCNI := p.cfg.RequireCNI || err == nil && network.Network != nil
	if withCNI { // plugins are offered the range, also by the next berthd
		if err := p.bridge.SaveCIDRs(cidrs); err != nil {
			return err
		}
	}
	if err := p.bridge.SetCIDRs(ctx, cidrs); err != nil {
		if !withCNI {
			return err
		}
		p.log.Info("the built-in bridge keeps the range of its pods: CNI plugins connect new ones", "error", err)
	}
	p.mu.Lock()
	p.cidrs = cidrs
	p.mu.Unlock()
	return nil
}

func (p *provider) Purge(context.Context) error { return p.bridge.Purge() }

func (p *provider) Close() error { return errors.Join(p.bridge.Close(), p.cni.Close()) }

// checkID refuses a pod ID that cannot be a file name.
func checkID(id string) error {
	ok := id != "" && id[0] != '.' && len(id) <= 200
	for _, c := range id {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("_.-", c))
	}
	if !ok {
		return fmt.Errorf("pod ID %q: %w", id, errdefs.ErrInvalidArgument)
	}
	return nil
}
