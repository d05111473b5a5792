package main

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/config"
)

// The server of metrics, whose clients show nobody who they are, has bounds.
func TestClientsOfTheMetricsHaveBounds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := &config.Config{}
	cfg.Metrics.Address = l.Addr().String()
	l.Close()
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "some"}))
	end, err := serveMetrics(cfg, registry, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	}()
	get := func(header string) (status int, body string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+cfg.Metrics.Address+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("x", header)
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	var silent []net.Conn
	for range maxScrapers + 10 {
		conn, err := net.Dial("tcp", cfg.Metrics.Address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		silent = append(silent, conn)
	}
	if status, body := get(""); status != http.StatusOK || !strings.Contains(body, "some 0") {
		t.Errorf("%d, %q", status, body)
	}
	if err := silent[0].SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := silent[0].Read(make([]byte, 1)); err == nil || err.(net.Error).Timeout() {
		t.Errorf("the first that says nothing: %v", err)
	}
	if status, _ := get(strings.Repeat("x", 64<<10)); status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a header of 64 KiB: %d", status)
	}
}
