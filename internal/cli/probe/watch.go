package probe

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// tries is how often a probe is tried that could not be run, before the next period.
const tries = 3

// Watch runs a probe in its periods until ctx ends, and calls changed each time that its result has changed for as
// many probes as its thresholds say: with nil for success. The first result is always told. It ends when changed
// returns false.
func (t *Target) Watch(ctx context.Context, p *corev1.Probe, changed func(error) bool) {
	period := time.Duration(p.PeriodSeconds) * time.Second
	if period <= 0 {
		period = 10 * time.Second
	}
	t.watch(ctx, p, period, changed)
}

func (t *Target) watch(ctx context.Context, p *corev1.Probe, period time.Duration, changed func(error) bool) {
	delay := time.Duration(p.InitialDelaySeconds) * time.Second
	if !t.Since.IsZero() {
		delay -= time.Since(t.Since)
	}
	if !sleep(ctx, delay) {
		return
	}
	counter := counter{success: max(p.SuccessThreshold, 1), failure: p.FailureThreshold}
	if counter.failure <= 0 {
		counter.failure = 3
	}
	for {
		err := t.try(ctx, p)
		if ctx.Err() != nil {
			return
		}
		if tell, known := counter.add(err); known && tell && !changed(err) {
			return
		}
		if !sleep(ctx, period) {
			return
		}
	}
}

// try runs a probe, again where it could not be run.
func (t *Target) try(ctx context.Context, p *corev1.Probe) error {
	var err error
	for range tries {
		err = t.check(ctx, p)
		var failure *Failure
		if err == nil || errors.As(err, &failure) || ctx.Err() != nil {
			return err
		}
	}
	return err
}

func sleep(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// counter counts equal results in a row.
type counter struct {
	success, failure int32 // the thresholds
	run              int32
	good             bool // the last result
	told             bool
	toldGood         bool
}

// add counts a result. known is false for an error that is no result, as when the daemon is away; tell, when a
// threshold is reached and what it says is new.
func (c *counter) add(err error) (tell, known bool) {
	var failure *Failure
	if err != nil && !errors.As(err, &failure) {
		return false, false
	}
	good := err == nil
	if c.run > 0 && good == c.good {
		c.run++
	} else {
		c.run, c.good = 1, good
	}
	if good && c.run < c.success || !good && c.run < c.failure || c.told && c.toldGood == good {
		return false, true
	}
	c.told, c.toldGood = true, good
	return true, true
}
