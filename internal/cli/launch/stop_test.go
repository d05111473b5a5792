package launch

import (
	"testing"
	"time"

	"berth/internal/manifest"
)

// TestGracePeriodIsThatOfTheAnnotation. Seen to fail where 2147483648 seconds and more were 30.
func TestGracePeriodIsThatOfTheAnnotation(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"": 30 * time.Second, "soon": 30 * time.Second, "-1": 30 * time.Second, "0": 0, "7": 7 * time.Second,
		"2147483648": 2147483648 * time.Second, "10000000000": 100 * 365 * 24 * time.Hour,
	} {
		if got := GracePeriod(map[string]string{manifest.AnnotationGracePeriod: text}); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	if got := GracePeriod(nil); got != 30*time.Second {
		t.Errorf("without the annotation: %v", got)
	}
}
