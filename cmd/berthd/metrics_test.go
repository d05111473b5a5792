package main

import (
	"fmt"
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

// servedMetrics serves metrics until the test ends.
func servedMetrics(t *testing.T, registry prometheus.Gatherer) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := &config.Config{}
	cfg.Metrics.Address = l.Addr().String()
	l.Close()
	end, err := serveMetrics(cfg, registry, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	return cfg.Metrics.Address
}

// TestScrapersThatDoNotReadKeepNobodyOut: they had all places until the answer timed out, after half a minute.
func TestScrapersThatDoNotReadKeepNobodyOut(t *testing.T) {
	registry := prometheus.NewRegistry()
	for i := range 200 { // more than the kernel takes for a client that reads nothing
		registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: fmt.Sprint("some_", i),
			Help: strings.Repeat("long ", 10000)}))
	}
	address := servedMetrics(t, registry)
	for range 2 * maxScrapes {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); err != nil { // the answer has begun
			t.Fatal(err)
		}
	}
	resp, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK || err != nil {
		t.Errorf("%d, %.100q, %v", resp.StatusCode, body, err)
	}
}

// The server of metrics, whose clients show nobody who they are, has bounds.
func TestClientsOfTheMetricsHaveBounds(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "some"}))
	address := servedMetrics(t, registry)
	get := func(header string) (status int, body string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/metrics", nil)
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
		conn, err := net.Dial("tcp", address)
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
