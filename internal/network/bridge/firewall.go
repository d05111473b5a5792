package bridge

import (
	"net/netip"
	"sync"
	"time"

	"berth/internal/firewall"
)

// firewallWatch is what the bridge knows of the node's firewall. Only the watch looks at it.
type firewallWatch struct {
	next time.Time // when it is looked at again at the earliest

	mu   sync.Mutex // guards text
	text string     // which packets of pods it stops, and where
}

func (w *firewallWatch) warning() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.text == "" {
		return ""
	}
	return "the node's firewall stops packets of pods (`berth doctor` says how to let them pass): " + w.text
}

// restAfterLook is how many times as long as the look at a firewall took nobody looks again: one of 5,000 rules in the
// way of pods takes 0.1 s, and is looked at once in a minute and a half.
const restAfterLook = 1000

// lookAtFirewall looks whether the node's firewall stops packets of pods. A firewall may be switched on, and may be
// told of the bridge, at any time.
func (b *Bridge) lookAtFirewall() {
	w := &b.firewall
	began := time.Now()
	if began.Before(w.next) {
		return
	}
	b.segment.Lock()
	up := b.segment.up
	b.segment.Unlock()
	text := ""
	if up {
		var gateways []netip.Prefix
		b.pods.mu.Lock()
		for _, p := range b.pods.usable() {
			gateways = append(gateways, netip.PrefixFrom(p.gateway, p.prefix.Bits()))
		}
		b.pods.mu.Unlock()
		blocks, err := firewall.Look(firewall.Bridge{Name: b.cfg.Name, Gateways: gateways})
		w.next = time.Now().Add(restAfterLook * time.Since(began))
		if err != nil { // what has been read may be the half of rules that are being changed
			b.log.Debug("the node's firewall could not be read", "bridge", b.cfg.Name, "error", err)
			return
		}
		text = firewall.Text(blocks)
	}
	w.mu.Lock()
	before := w.text
	w.text = text
	w.mu.Unlock()
	switch {
	case text == before:
	case text != "":
		b.log.Warn("the node's firewall stops packets of pods: let the bridge pass there", "bridge", b.cfg.Name,
			"chains", text)
	case up:
		b.log.Info("the node's firewall lets packets of pods pass", "bridge", b.cfg.Name)
	}
}
