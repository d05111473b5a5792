// Command berth-keeper is the one parent of every container on a node: see package berth/internal/keeper/daemon.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/coredump"
	"berth/internal/fdtable"
	"berth/internal/heap"
	keeper "berth/internal/keeper/client"
	"berth/internal/keeper/daemon"
	"berth/internal/keeper/handover"
	"berth/internal/liblog"
	"berth/internal/mountns"
)

// version is set by the linker.
var version = "0.1.0-dev"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "berth-keeper:", err)
		os.Exit(1)
	}
}

func run() error {
	flags := flag.NewFlagSet("berth-keeper", flag.ExitOnError)
	dir := flags.String("dir", "/run/berth/keeper", "the keeper's `directory`: its sockets and table")
	level := flags.String("log-level", "info", "debug, info, warn or error")
	escrowProcess := flags.Bool(daemon.EscrowFlag, false, "hold duplicates of the pipes and pidfds of the keeper "+
		"in the directory until another keeper has them; a keeper that ends starts this by itself")
	showVersion := flags.Bool("version", false, "print the version and exit")
	showFormat := flags.Bool("state-format", false, "print the version of the state that an upgrade hands over and exit")
	if err := flags.Parse(os.Args[1:]); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	switch {
	case *showVersion:
		fmt.Println("berth-keeper", version)
		return nil
	case *showFormat:
		fmt.Println(handover.Format)
		return nil
	}
	if !*escrowProcess { // that one mounts nothing
		// Before anything that the program would have to do again.
		if err := mountns.Enter(context.Background(), mountns.Pin(*dir)); err != nil {
			return err
		}
	}
	if err := coredump.Forbid(); err != nil {
		return err
	}
	log, err := logger(*level)
	if err != nil {
		return err
	}
	slog.SetDefault(log)
	// A reader of the log that goes away must not end the keeper. Not ignored but caught: what is ignored stays so in
	// every container.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)

	// A hangup before the keeper serves, or of an escrow process, must end neither.
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)

	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	if *escrowProcess {
		return keeper.HoldEscrow(ctx, keeper.Config{Dir: *dir, Logger: log.With("from", "escrow process")}, func() {
			fmt.Println("held")
			os.Stdout.Close()
		})
	}
	// Execs inherit it where their container names none, whoever has started the keeper.
	unix.Umask(0o022)

	s, err := daemon.New(daemon.Config{Dir: *dir, Version: version, Logger: log, Hangup: hangup})
	if err != nil {
		return err
	}
	go func() {
		for range hangup {
			_ = s.Upgrade() // logs why it failed
		}
	}()
	resting, awake := context.WithCancel(ctx)
	var background sync.WaitGroup
	background.Go(func() { heap.ReturnAtRest(resting) })
	background.Go(func() {
		if err := fdtable.Reserve(fdtable.Size); err != nil {
			log.Warn("starts may wait for the table of descriptors to grow", "error", err)
		}
	})
	defer background.Wait()
	defer awake()
	return s.Serve(ctx)
}

func logger(level string) (*slog.Logger, error) {
	log, err := liblog.Stderr(level, "auto")
	if err != nil {
		return nil, fmt.Errorf("log level %q: %w", level, err)
	}
	liblog.Logrus(log.With("from", "libcontainer"))
	return log, nil
}
