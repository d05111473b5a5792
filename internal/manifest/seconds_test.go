package manifest

import (
	"math"
	"strings"
	"testing"
	"time"
)

// TestSecondsAreAtMostAHundredYears. Seen to fail where they were multiplied as they are: 10000000000 were negative.
func TestSecondsAreAtMostAHundredYears(t *testing.T) {
	const years = 100 * 365 * 24 * time.Hour
	for n, want := range map[int64]time.Duration{
		0: 0, 1: time.Second, -1: -time.Second, math.MaxInt32: math.MaxInt32 * time.Second,
		3_153_600_000: years, 3_153_600_001: years, 10_000_000_000: years, math.MaxInt64: years,
		-10_000_000_000: -years, math.MinInt64: -years,
	} {
		if got := Seconds(n); got != want {
			t.Errorf("%d seconds are %v, want %v", n, got, want)
		}
	}
}

// TestADeadlineIsOneOfTheAPI: of a pod it is at most 2147483647 seconds, and of a Job any number. Seen to fail where
// 2147483648 was taken for a pod, and where the deadline of a Job was negative.
func TestADeadlineIsOneOfTheAPI(t *testing.T) {
	decoded := func(text string) (*Documents, error) {
		return DecodeFiles([]File{{In: strings.NewReader(text)}}, Options{})
	}
	for seconds, right := range map[string]bool{
		"0": false, "1": true, "2147483647": true, "2147483648": false, "10000000000": false,
	} {
		_, err := decoded(withSpec(one + "activeDeadlineSeconds: " + seconds + "\n"))
		if (err == nil) != right || err != nil && !strings.Contains(err.Error(), "spec.activeDeadlineSeconds") {
			t.Errorf("activeDeadlineSeconds: %s: %v", seconds, err)
		}
	}
	documents, err := decoded(`apiVersion: batch/v1
kind: Job
metadata: {name: j}
spec:
  activeDeadlineSeconds: 10000000000
  template:
    spec: {restartPolicy: Never, containers: [{name: c, image: i}]}
`)
	if err != nil {
		t.Fatal(err)
	}
	if job := documents.Groups[0].Job; job.Deadline != longest {
		t.Errorf("the deadline of the Job is %v", job.Deadline)
	}
}
