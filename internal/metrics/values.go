package metrics

import "sync"

// maxValues is how many values a label has that comes from outside. Prometheus keeps a series for each of them for as
// long as it keeps anything.
const maxValues = 32

// otherValue stands for all values beyond.
const otherValue = "other"

// values bounds the values of a label: those that come first have their names.
type values struct {
	mu   sync.Mutex
	seen map[string]struct{}
}

// of is the value itself, or otherValue.
func (v *values) of(name string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.seen[name]; ok {
		return name
	}
	if len(v.seen) >= maxValues {
		return otherValue
	}
	if v.seen == nil {
		v.seen = map[string]struct{}{}
	}
	v.seen[name] = struct{}{}
	return name
}
