package annotation

import (
	"fmt"
	"strconv"

	"berth/internal/loglimit"
	"berth/internal/model"
)

// logLimits reads max_size=10m,max_files=3,rate=1m,burst=4m,over=drop, with the names that the configuration has. 0 is
// no limit. What given has already holds.
func logLimits(text string, given *model.LogLimits) (*model.LogLimits, error) {
	list, err := entries(text)
	if err != nil {
		return nil, err
	}
	var read model.LogLimits
	sizes := map[string]struct {
		to    **int64
		least int64
	}{
		"max_size": {&read.MaxSize, loglimit.MinSize},
		"rate":     {&read.Rate, loglimit.MinRate},
		"burst":    {&read.Burst, loglimit.MinBurst},
	}
	seen := map[string]bool{}
	for _, e := range list {
		key, value := e[0], e[1]
		if seen[key] {
			return nil, fmt.Errorf("%s is there twice", key)
		}
		seen[key] = true
		size, ok := sizes[key]
		switch {
		case ok:
			n, err := loglimit.ParseSize(value)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
			if n != 0 && n < size.least {
				return nil, loglimit.TooSmall(key, size.least)
			}
			*size.to = &n
		case key == "max_files":
			n, err := strconv.Atoi(value)
			if err != nil || n < loglimit.MinFiles || n > loglimit.MaxFiles {
				return nil, fmt.Errorf("max_files: %q is no number in %d..%d", value, loglimit.MinFiles, loglimit.MaxFiles)
			}
			read.MaxFiles = &n
		case key == "over" && (value == string(loglimit.Wait) || value == string(loglimit.Drop)):
			read.Over = value
		case key == "over":
			return nil, fmt.Errorf("over: %q is neither %s nor %s", value, loglimit.Wait, loglimit.Drop)
		default:
			return nil, fmt.Errorf("%q is none of max_size, max_files, rate, burst, over", key)
		}
	}
	if given != nil {
		keep(&read.MaxSize, given.MaxSize)
		keep(&read.MaxFiles, given.MaxFiles)
		keep(&read.Rate, given.Rate)
		keep(&read.Burst, given.Burst)
		if given.Over != "" {
			read.Over = given.Over
		}
	}
	return &read, nil
}

// keep lets hold what was given before.
func keep[T any](to **T, given *T) {
	if given != nil {
		*to = given
	}
}
