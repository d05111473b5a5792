package manifest

import "time"

// longest is 100 years: longer than anything on a node lasts, and short enough that a Duration has room for two of
// them.
const longest = 100 * 365 * 24 * time.Hour

// Seconds translates a number of seconds. More than 100 years are 100 years, on both sides of 0.
func Seconds(n int64) time.Duration {
	const most = int64(longest / time.Second)
	return time.Duration(max(-most, min(n, most))) * time.Second
}
