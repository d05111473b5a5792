package table

import (
	"fmt"
	"strings"
	"time"
)

// Age is a span of time as people say it: 8s, 4m, 3h12m, 5d.
func Age(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 10*time.Minute:
		return spans(int(d.Minutes()), "m", int(d.Seconds())%60, "s")
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 10*time.Hour:
		return spans(int(d.Hours()), "h", int(d.Minutes())%60, "m")
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	case d < 2*365*24*time.Hour:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
	return fmt.Sprintf("%dy", int(d.Hours()/24/365))
}

func spans(large int, largeUnit string, small int, smallUnit string) string {
	if small == 0 {
		return fmt.Sprintf("%d%s", large, largeUnit)
	}
	return fmt.Sprintf("%d%s%d%s", large, largeUnit, small, smallUnit)
}

// Bytes is a size in binary units, three digits: 812B, 4.5KiB, 33.1MiB.
func Bytes(n uint64) string {
	if n < 1024 {
		return fmt.Sprintf("%dB", n)
	}
	value, unit := float64(n), 0
	for value >= 1024 && unit < 5 {
		value /= 1024
		unit++
	}
	precision := 1
	if value >= 100 {
		precision = 0
	}
	return fmt.Sprintf("%.*f%ciB", precision, value, "BKMGTP"[unit])
}

// ShortID is the beginning of an ID, enough to name it among others. A digest loses its algorithm.
func ShortID(id string) string {
	if _, hex, ok := strings.Cut(id, ":"); ok {
		id = hex
	}
	if len(id) > 12 {
		return id[:12]
	}
	return id
}
