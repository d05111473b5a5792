package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

func init() { commands["exchange"] = exchange }

// exchange A B swaps two names, which another process looks up, again and again until it gets SIGTERM.
// It says how often.
func exchange(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("exchange takes two names")
	}
	var stop atomic.Bool
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM)
	go func() {
		<-signals
		stop.Store(true)
	}()
	runtime.LockOSThread()
	fmt.Println("exchanging")
	n := 0
	for ; !stop.Load(); n++ {
		if err := unix.Renameat2(unix.AT_FDCWD, args[0], unix.AT_FDCWD, args[1], unix.RENAME_EXCHANGE); err != nil {
			return fmt.Errorf("exchange %s and %s: %w", args[0], args[1], err)
		}
	}
	fmt.Println("exchanged", n)
	return nil
}
