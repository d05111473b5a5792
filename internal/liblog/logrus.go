// Package liblog makes a program's log, and passes the log lines of libraries to it.
package liblog

import (
	"context"
	"io"
	"log/slog"

	"github.com/sirupsen/logrus"
)

// Logrus hands the entries of logrus' standard logger, from Warn up, to log: containerd's libraries and libcontainer
// use it.
func Logrus(log *slog.Logger) {
	logrus.SetOutput(io.Discard)
	logrus.SetLevel(logrus.WarnLevel)
	logrus.AddHook(bridge{log})
}

// lateReply is what ttrpc calls an error and is none: the answer to a call that its caller has cancelled.
const lateReply = "ttrpc: received message on inactive stream"

type bridge struct{ log *slog.Logger }

func (bridge) Levels() []logrus.Level { return logrus.AllLevels }

func (b bridge) Fire(e *logrus.Entry) error {
	level := slog.LevelDebug
	switch {
	case e.Message == lateReply:
	case e.Level <= logrus.ErrorLevel:
		level = slog.LevelError
	case e.Level == logrus.WarnLevel:
		level = slog.LevelWarn
	}
	args := make([]any, 0, 2*len(e.Data))
	for k, v := range e.Data {
		args = append(args, k, v)
	}
	b.log.Log(context.Background(), level, e.Message, args...)
	return nil
}
