package apply

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"berth/internal/cli/play"
)

const (
	// settle is how long the directory has to be quiet before it is read: some editors remove a file before they write it
	// anew, and some programs write one in several steps.
	settle = 300 * time.Millisecond
	// period is how often the directory and the pods are looked at without any event.
	period      = 10 * time.Second
	blindPeriod = 2 * time.Second // without inotify
)

// watch tells on a channel when the files of a directory may have changed and have been left alone for a while since,
// until ctx ends. For file systems whose changes inotify does not tell, the period has to do. Without inotify, of which
// err says why, the directory is looked at more often.
func watch(ctx context.Context, dir string) (changed <-chan struct{}, err error) {
	changes, every := make(chan struct{}), period
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		watcher, every = &fsnotify.Watcher{}, blindPeriod // its channels are nil: nothing ever comes
	}
	go func() {
		if err == nil {
			defer watcher.Close()
			_ = watcher.Add(dir)
		}
		quiet := time.NewTimer(settle)
		defer quiet.Stop()
		tick := time.NewTicker(every)
		defer tick.Stop()
		// settled is changes while there is something to tell. A change that comes before somebody has taken it takes it
		// back: the directory is not quiet any more.
		var settled chan<- struct{}
		later := func() { settled = nil; quiet.Reset(settle) }
		for {
			select {
			case <-ctx.Done():
				return
			case event, open := <-watcher.Events:
				if open && concerns(event) {
					later()
				}
			case <-watcher.Errors: // such as an overflow: events were lost
				later()
			case <-tick.C:
				if err == nil {
					_ = watcher.Add(dir) // another directory may be at its path by now
				}
				later()
			case <-quiet.C:
				settled = changes
			case settled <- struct{}{}:
				settled = nil
			}
		}
	}()
	return changes, err
}

// concerns says whether an event is about a manifest, or about the link through which all files of a ConfigMap's volume
// are replaced.
func concerns(event fsnotify.Event) bool {
	name := filepath.Base(event.Name)
	return event.Op != fsnotify.Chmod && (play.IsFile(name) || strings.HasPrefix(name, ".."))
}
