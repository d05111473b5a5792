// Command web is what the demo's image holds: a static web server, and a clock that leaves the time in a file for it.
//
//	web serve  answers / with a greeting and the clock's last time, /healthz with ok
//	web clock  writes the time to a file and a line to standard output, once a second
//	web whoami says what the process can see of itself
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	log.SetFlags(0)
	command := "serve"
	if len(os.Args) > 1 {
		command = os.Args[1]
	}
	commands := map[string]func(context.Context) error{"serve": serve, "clock": clock, "whoami": whoami}
	run, ok := commands[command]
	if !ok {
		log.Fatalf("there is no command %q", command)
	}
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

// timeFile is where the clock leaves the time. The two containers share its directory.
func timeFile() string { return filepath.Join(from("SHARED", "/shared"), "time") }

func from(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

func serve(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		now, err := os.ReadFile(timeFile())
		if err != nil {
			now = []byte("no clock yet")
		}
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Printf("%s %s for %s\n", r.Method, r.URL.Path, host)
		fmt.Fprintf(w, "%s from pod %s at %s; the clock says %s\n", from("GREETING", "Hello"), from("POD_NAME", "?"),
			from("POD_IP", "?"),
			strings.TrimSpace(string(now)))
	})
	server := &http.Server{Addr: ":" + from("PORT", "8080"), Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	context.AfterFunc(ctx, func() {
		fmt.Println("asked to stop")
		_ = server.Close()
	})
	fmt.Println("serving on", server.Addr)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func clock(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for number := 1; ; number++ {
		now := time.Now().UTC().Format(time.RFC3339)
		if err := os.WriteFile(timeFile(), []byte(now+"\n"), 0o644); err != nil {
			return err
		}
		fmt.Printf("tick %d, %s\n", number, now)
		select {
		case <-ctx.Done():
			fmt.Println("asked to stop")
			return nil
		case <-tick.C:
		}
	}
}

func whoami(context.Context) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	fmt.Printf("pid %d of user %d on host %s\n", os.Getpid(), os.Getuid(), host)
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	fmt.Printf("it sees %d processes\n", len(processes))
	interfaces, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	for _, address := range interfaces {
		fmt.Println("address", address)
	}
	return nil
}
