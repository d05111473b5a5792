package nri

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/plugin"
	validator "github.com/containerd/nri/plugins/default-validator"
	"github.com/containerd/ttrpc"
	"go.yaml.in/yaml/v3"
)

// NRI's library goes on without a plugin that does not answer, and its validator counts a plugin as present that was
// connected when the call began, or that has come back before the container is made. The validator is asked about new
// containers only. So the library lets pods pass that a required plugin has not seen.
// See https://github.com/containerd/nri/issues/316.

// noteAnswer keeps that a plugin has answered: it is connected. name has its index: 10-name.
func (p *Plugins) noteAnswer(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.joined[name] = true
	for _, n := range names(name) {
		p.answered[n] = true
		delete(p.lost, n)
	}
}

// noteFailure keeps that a plugin has failed in the turn that is under way. name has its index: 10-name.
func (p *Plugins) noteFailure(name string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed[name] = err
}

// names are the two names by which a plugin may be required: with its index, and without.
func names(name string) []string {
	_, base, _ := strings.Cut(name, "-")
	return []string{name, base}
}

// beginTurn forgets the answers of the turn before.
func (p *Plugins) beginTurn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.failed)
	clear(p.answered)
}

// endTurn keeps the plugins that the library has dropped in this turn, of which there were count before. ctx is that of
// the call. It is the library that decides which failures drop a plugin:
//   - none after the end of ctx;
//   - not an error that the plugin has answered with;
//   - the end of the connection, and an answer that comes too late, unless the plugin has asked to stay connected.
//     Whether it has, only the number of plugins shows.
//
// A plugin of the same name may have joined already, and has answered.
func (p *Plugins) endTurn(ctx context.Context, count int64) {
	fewer := p.count.Load() < count
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, err := range p.failed {
		closed := errors.Is(err, ttrpc.ErrClosed) || errors.Is(err, ttrpc.ErrServerClosed) ||
			errors.Is(err, ttrpc.ErrProtocol)
		if ctx.Err() != nil || !closed && !(fewer && errors.Is(err, context.DeadlineExceeded)) {
			continue
		}
		for _, n := range names(name) {
			if !p.answered[n] {
				p.lost[n] = true
			}
		}
	}
}

// requireAnswers refuses what all plugins were asked about in this turn, if one that the validator requires for it has
// not answered: it has failed, or it has been dropped in an earlier turn and has not come back. container is the
// container's name; empty: the pod itself.
func (p *Plugins) requireAnswers(pod *adaptation.PodSandbox, container string) error {
	silent := p.silent()
	if len(silent) == 0 || !p.cfg.Validator.Enable {
		return nil
	}
	required, err := p.required(pod, container)
	if err != nil {
		return err
	}
	for _, name := range required {
		if silent[name] {
			return fmt.Errorf("the required NRI plugin %q has not answered: %w", name, errdefs.ErrUnavailable)
		}
	}
	return nil
}

// silent are the names of the plugins that have not answered in this turn and should have.
func (p *Plugins) silent() map[string]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := maps.Clone(p.lost)
	for name := range p.failed {
		for _, n := range names(name) {
			out[n] = true
		}
	}
	return out
}

// required are the plugins that the configuration and annotations require, by their names with or without an index, as
// the validator finds them.
func (p *Plugins) required(pod *adaptation.PodSandbox, container string) ([]string, error) {
	if tolerated, err := p.tolerated(pod, container); tolerated || err != nil {
		return nil, err
	}
	required := slices.Clone(p.cfg.Validator.RequiredPlugins)
	value, ok := plugin.GetEffectiveAnnotation(pod, validator.RequiredPlugins, container)
	if !ok {
		return required, nil
	}
	var annotated []string
	if err := yaml.Unmarshal([]byte(value), &annotated); err != nil {
		return nil, fmt.Errorf("annotation %s: %q: %w: %w", validator.RequiredPlugins, value, err,
			errdefs.ErrInvalidArgument)
	}
	return append(required, annotated...), nil
}

// tolerated tells whether an annotation lets a container do without required plugins. A pod can do without them if one
// of its containers can: a required plugin that has been dropped may have to come back as a container of this pod.
func (p *Plugins) tolerated(pod *adaptation.PodSandbox, container string) (bool, error) {
	key := p.cfg.Validator.TolerateMissingAnnotation
	if key == "" {
		return false, nil
	}
	if value, ok := plugin.GetEffectiveAnnotation(pod, key, container); ok {
		tolerated, err := strconv.ParseBool(value)
		if err != nil {
			return false, fmt.Errorf("annotation %s: %q is no bool: %w", key, value, errdefs.ErrInvalidArgument)
		}
		if tolerated || container != "" {
			return tolerated, nil
		}
	}
	if container != "" {
		return false, nil
	}
	for name, value := range pod.GetAnnotations() {
		if !strings.HasPrefix(name, key+"/container.") {
			continue
		}
		if tolerated, err := strconv.ParseBool(value); err == nil && tolerated {
			return true, nil
		}
	}
	return false, nil
}
