package nri

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/plugin"
	validator "github.com/containerd/nri/plugins/default-validator"
	"go.yaml.in/yaml/v3"
)

// NRI's library goes on without a plugin that does not answer, and its validator counts a plugin as present that was
// connected when the call began, or that has come back before the container is made. So it lets pods pass that a
// required plugin has not seen. See https://github.com/containerd/nri/issues/316.

// noteFailure keeps that a plugin has failed in the turn that is under way. name has its index: 10-name.
func (p *Plugins) noteFailure(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = append(p.failed, name)
}

// takeFailures are the plugins that have failed since it was called last.
func (p *Plugins) takeFailures() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	failed := p.failed
	p.failed = nil
	return failed
}

// requireAnswers refuses what all plugins were asked about in this turn, if one that the validator requires for it has
// not answered. container is the container's name; empty: the pod itself.
func (p *Plugins) requireAnswers(pod *adaptation.PodSandbox, container string) error {
	failed := p.takeFailures()
	if len(failed) == 0 || !p.cfg.Validator.Enable {
		return nil
	}
	required, err := p.required(pod, container)
	if err != nil {
		return err
	}
	for _, name := range failed {
		if _, base, _ := strings.Cut(name, "-"); slices.Contains(required, base) {
			return fmt.Errorf("the required NRI plugin %q has not answered: %w", base, errdefs.ErrUnavailable)
		}
	}
	return nil
}

// required are the plugins that the configuration and annotations require, by their names without an index, as the
// validator finds them.
func (p *Plugins) required(pod *adaptation.PodSandbox, container string) ([]string, error) {
	if key := p.cfg.Validator.TolerateMissingAnnotation; key != "" {
		if value, ok := plugin.GetEffectiveAnnotation(pod, key, container); ok {
			tolerated, err := strconv.ParseBool(value)
			if err != nil {
				return nil, fmt.Errorf("annotation %s: %q is no bool: %w", key, value, errdefs.ErrInvalidArgument)
			}
			if tolerated {
				return nil, nil
			}
		}
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
