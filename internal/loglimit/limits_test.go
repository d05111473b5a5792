package loglimit

import (
	"testing"

	"github.com/containerd/errdefs"
)

func TestLimitsAreCompletedAndChecked(t *testing.T) {
	for name, c := range map[string]struct {
		given, want Limits
		wrong       bool
	}{
		"none":               {},
		"what is off":        {given: Limits{MaxFiles: 7, Burst: 1, Over: "what"}},
		"a size":             {given: Limits{MaxSize: MinSize}, want: Limits{MaxSize: MinSize, MaxFiles: DefaultFiles}},
		"a rate":             {given: Limits{Rate: 1 << 20}, want: Limits{Rate: 1 << 20, Burst: 1 << 20, Over: Wait}},
		"the lowest rate":    {given: Limits{Rate: MinRate}, want: Limits{Rate: MinRate, Burst: MinBurst, Over: Wait}},
		"a size too small":   {given: Limits{MaxSize: MinSize - 1}, wrong: true},
		"a negative size":    {given: Limits{MaxSize: -1}, wrong: true},
		"one file":           {given: Limits{MaxSize: MinSize, MaxFiles: 1}, wrong: true},
		"a rate too low":     {given: Limits{Rate: MinRate - 1}, wrong: true},
		"a burst too small":  {given: Limits{Rate: MinRate, Burst: MinBurst - 1}, wrong: true},
		"neither wait, drop": {given: Limits{Rate: MinRate, Over: "what"}, wrong: true},
	} {
		t.Run(name, func(t *testing.T) {
			got := c.given.Complete()
			if err := got.Check(); c.wrong != errdefs.IsInvalidArgument(err) || !c.wrong && err != nil {
				t.Errorf("%+v: %v", got, err)
			}
			if !c.wrong && got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestSizesAreThoseOfTheConfigurationAndOfKubernetes(t *testing.T) {
	for text, want := range map[string]int64{
		"": 0, "0": 0, "10m": 10 << 20, "10Mi": 10 << 20, "512k": 512 << 10, "1g": 1 << 30,
	} {
		if n, err := ParseSize(text); err != nil || n != want {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
	for _, text := range []string{"lots", "-1", "i", "10q"} {
		if n, err := ParseSize(text); err == nil {
			t.Errorf("%q is %d", text, n)
		}
	}
}
