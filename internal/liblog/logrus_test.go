package liblog

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
)

func TestLogrusEntriesKeepLevelAndFields(t *testing.T) {
	var out bytes.Buffer
	Logrus(slog.New(slog.NewTextHandler(&out, nil)))
	logrus.WithField("id", "x").Warn("careful")
	logrus.Info("chatter")
	logrus.WithField("stream", 7).Error("ttrpc: received message on inactive stream")
	got := out.String()
	if !strings.Contains(got, "level=WARN msg=careful id=x") || strings.Contains(got, "chatter") ||
		strings.Contains(got, "inactive") {
		t.Errorf("logged %q", got)
	}
}
