package operation

import (
	"context"
	"errors"
	"testing"
)

func TestWhoCannotHaveALockIsToldWhatHeWanted(t *testing.T) {
	lock, release := Taken()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for want, hold := range map[string]func() error{
		"stop container a: another operation holds it: context canceled": func() error {
			_, err := lock.Exclusive(ended, "stop container a")
			return err
		},
		"start container a: another operation holds its pod: context canceled": func() error {
			_, err := lock.Shared(ended, "start container a", "its pod")
			return err
		},
	} {
		if err := hold(); err == nil || err.Error() != want || !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	if lock.TryShared() != nil {
		t.Error("a lock was shared that one operation holds alone")
	}
	release()
	first, second := lock.TryShared(), lock.TryShared()
	if first == nil || second == nil {
		t.Fatal("a free lock cannot be shared")
	}
	if _, err := lock.Exclusive(ended, "remove"); err == nil {
		t.Error("a shared lock was held alone")
	}
	first()
	second()
	if release, err := lock.Exclusive(t.Context(), "remove"); err != nil {
		t.Error(err)
	} else {
		release()
	}
}
