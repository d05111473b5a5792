package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/image/ranges"
	"berth/internal/model"
	rt "berth/internal/registrytest"
)

// step is the size of a range in these tests. Half of it counts as progress.
const step = 2 * progress

// small bounds are reached by blobs of some MiB.
var small = ranges.Settings{Connections: 4, PerHost: 6, Size: step, Memory: 6 * step}

// noise are bytes of which no two parts are the same.
func noise(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	return data
}

// patient waits longer for a registry than that ever takes. stalls is for registries that stall: a test waits for it.
var (
	patient = Retry{Attempts: 5, Backoff: 5 * time.Millisecond, MaxBackoff: 1500 * time.Millisecond,
		Stall: 30 * time.Second}
	stalls = Retry{Attempts: 5, Backoff: 5 * time.Millisecond, MaxBackoff: 1500 * time.Millisecond, Stall: time.Second}
)

// ranged is a world whose client loads ahead.
func ranged(t *testing.T, s ranges.Settings) *world { return rangedWith(t, s, patient) }

func rangedWith(t *testing.T, s ranges.Settings, retry Retry) *world {
	w := newWorld(t)
	cfg := w.client.cfg
	cfg.Pool = ranges.NewPool(s)
	cfg.Retry = retry
	dial := w.client.dial
	w.client = NewClient(cfg)
	w.client.dial = dial
	return w
}

// repository is registry.test/a.
func (w *world) repository(auth *model.Auth) *Repository {
	w.Helper()
	named, err := reference.ParseNormalizedNamed("registry.test/a:1")
	if err != nil {
		w.Fatal(err)
	}
	repo, err := w.client.Repository(w.Context(), named, auth)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(repo.Close)
	return repo
}

func describe(data []byte) ocispec.Descriptor {
	return ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromBytes(data), Size: int64(len(data)),
	}
}

// blob reads a blob whole, and makes sure that nothing of it is left in the pool.
func (w *world) blob(repo *Repository, data []byte) error {
	w.Helper()
	b, err := repo.Blob(w.Context(), describe(data), nil)
	if err != nil {
		return err
	}
	got, err := io.ReadAll(b)
	if err == nil && !bytes.Equal(got, data) {
		err = fmt.Errorf("%d bytes that are not those of the blob", len(got))
	}
	b.Close()
	w.idle()
	return err
}

func (w *world) idle() {
	w.Helper()
	if n := w.client.cfg.Pool.Mapped(); n != 0 {
		w.Errorf("the pool has %d bytes without any blob", n)
	}
}

// wantWaste makes sure that a registry has not sent much more than a blob.
func (w *world) wantWaste(r *rt.Registry, data []byte, most int64) {
	w.Helper()
	if sent := r.Sent(describe(data).Digest.String()); sent > int64(len(data))+most {
		w.Errorf("%d bytes were sent of a blob of %d", sent, len(data))
	}
}

const withCA = "CA\n"

// A blob from a registry that limits each connection takes several connections, and comes whole; each byte is sent
// once. Seen to fail without Follow.
func TestALargeBlobComesOverSeveralConnections(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: run without -short")
	}
	w := ranged(t, small)
	r := w.registry("registry.test:443")
	w.configure(withCA)
	data := noise(4 << 20)
	r.PutBlob(data)
	r.SetFaults(rt.Faults{BytesPerSecond: 5 << 19})
	if err := w.blob(w.repository(nil), data); err != nil {
		t.Fatal(err)
	}
	conns, blobs := r.Peaks()
	if blobs < 2 || blobs > small.Connections || conns > small.Connections+1 {
		t.Errorf("%d requests at a time, over %d connections", blobs, conns)
	}
	w.wantWaste(r, data, 0)
}

// A small blob is asked for as before, without a range.
func TestASmallBlobTakesOneConnection(t *testing.T) {
	w := ranged(t, small)
	r := w.registry("registry.test:443")
	w.configure(withCA)
	data := noise(2*step - 1)
	r.PutBlob(data)
	if err := w.blob(w.repository(nil), data); err != nil {
		t.Fatal(err)
	}
	if reqs := r.Requests(); len(reqs) != 1 || reqs[0].Range != "" {
		t.Errorf("requests %+v", reqs)
	}
}

// What a registry does wrong costs time, and never gives other bytes. Each lie was seen to be believed with its part of
// span.check taken out; without plain, each is the end of the pull.
func TestABlobComesWholeInSpiteOfItsRegistry(t *testing.T) {
	for name, c := range map[string]struct {
		faults rt.Faults
		waste  int64  // bytes that may be sent in vain
		says   string // what the log says of the host; empty: it sends ranges
	}{
		"no ranges":          {rt.Faults{NoRange: true}, 0, ""},
		"no ranges and slow": {rt.Faults{NoRange: true, BytesPerSecond: 8 << 20}, 0, ""},
		"cut at random":      {rt.Faults{CutWithin: 3 * step, BytesPerSecond: 8 << 20}, 8 << 20, ""},
		"cut often":          {rt.Faults{CutAfter: progress + 100, BytesPerSecond: 8 << 20}, 8 << 20, ""},
		"stalled twice":      {rt.Faults{StallAfter: progress + 100, Times: 2, BytesPerSecond: 8 << 20}, 8 << 20, ""},
		"two at a time":      {rt.Faults{AtOnce: 2, BytesPerSecond: 4 << 20}, 1 << 10, ""},
		"one at a time":      {rt.Faults{AtOnce: 1, RetryAfter: "1", BytesPerSecond: 4 << 20}, 1 << 10, ""},
		"wrong start":        {rt.Faults{Range: rt.WrongStart}, 4 << 20, `it sends \"bytes 1-`},
		"wrong size":         {rt.Faults{Range: rt.WrongSize}, 4 << 20, `/2097170\"`},
		"wrong length":       {rt.Faults{Range: rt.WrongLength}, 4 << 20, "it sends 131073 bytes as"},
		"too long":           {rt.Faults{Range: rt.TooLong}, 4 << 20, `it sends \"bytes 0-131072`},
		"no Content-Range":   {rt.Faults{Range: rt.NoHeader}, 4 << 20, `it sends \"\"`},
		"encoded":            {rt.Faults{Range: rt.Encoded}, 4 << 20, "it encodes a range"},
		// The first part, and the whole on each of four connections.
		"the whole later": {rt.Faults{Range: rt.WholeLater}, 9 << 20, "with the whole"},
		"shorter":         {rt.Faults{Range: rt.Shorter, BytesPerSecond: 8 << 20}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			retry := patient
			if c.faults.StallAfter > 0 {
				retry = stalls
			}
			w := rangedWith(t, small, retry)
			r := w.registry("registry.test:443")
			w.configure(withCA)
			data := noise(2<<20 + 17)
			r.PutBlob(data)
			r.SetFaults(c.faults)
			if err := w.blob(w.repository(nil), data); err != nil {
				t.Fatal(err)
			}
			w.wantWaste(r, data, c.waste)
			log := w.logs.text.String()
			if told := strings.Contains(log, "does not send ranges"); told != (c.says != "") || !strings.Contains(log, c.says) {
				t.Errorf("want %s in the log:\n%s", c.says, log)
			}
		})
	}
}

// A host that is asked too often is asked less often. Seen to fail without complain: half of all requests are
// refused.
func TestTooManyRequestsAreHeeded(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: run without -short")
	}
	w := ranged(t, small)
	r := w.registry("registry.test:443")
	w.configure(withCA)
	data := noise(64 * step)
	r.PutBlob(data)
	r.SetFaults(rt.Faults{AtOnce: 2, BytesPerSecond: 4 << 20})
	if err := w.blob(w.repository(nil), data); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d requests for %d ranges", len(r.Requests()), 64)
	if refused := len(r.Requests()) - 64; refused > 20 {
		t.Errorf("%d requests were refused", refused)
	}
}

// A part that is another one, and does not say so, can only be told by the digest: the bytes are as many as they
// have to be.
func TestOtherBytesAreLeftToTheDigest(t *testing.T) {
	w := ranged(t, small)
	r := w.registry("registry.test:443")
	w.configure(withCA)
	data := noise(1 << 20)
	r.PutBlob(data)
	r.SetFaults(rt.Faults{Range: rt.WrongBytes})
	if err := w.blob(w.repository(nil), data); err == nil || !strings.Contains(err.Error(), fmt.Sprint(len(data))) {
		t.Errorf("error %v", err)
	}
}

// The rest of a blob, which is asked for after a break, is not taken from a host that sends another part. Seen to fail
// without checkRest.
func TestTheWrongRestIsRefused(t *testing.T) {
	w := ranged(t, ranges.Settings{Connections: 1})
	r := w.registry("registry.test:443")
	w.configure(withCA)
	data := noise(1 << 20)
	r.PutBlob(data)
	r.SetFaults(rt.Faults{Range: rt.WrongStart, CutAfter: 300 << 10, Times: 1})
	if err := w.blob(w.repository(nil), data); err == nil || !strings.Contains(err.Error(), "asked for the bytes") {
		t.Errorf("error %v", err)
	}
}

// One range that stalls does not let the others run away: at most the memory of the pool is ahead of the reader. Seen
// to fail without the two bounds in take.
func TestMemoryIsBoundedWhileARangeStalls(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: run without -short")
	}
	w := ranged(t, small)
	r := w.registry("registry.test:443")
	w.configure(withCA)
	data := noise(8 << 20)
	r.PutBlob(data)
	b, err := w.repository(nil).Blob(w.Context(), describe(data), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	pool := w.client.cfg.Pool
	r.SetFaults(rt.Faults{BytesPerSecond: 1 << 20})
	got := 0
	for buf := make([]byte, 4<<10); got < step+100; { // into a range that is loaded ahead
		n, err := b.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		got += n
	}
	r.SetFaults(rt.Faults{})
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if n := pool.Mapped(); n > small.Memory {
			t.Fatalf("the pool has %d bytes, over its %d", n, small.Memory)
		}
	}
	// Beyond the pool, the sockets of the connections have some bytes.
	if sent := r.Sent(describe(data).Digest.String()); sent > int64(got)+small.Memory+step+(1<<20) {
		t.Errorf("%d bytes were sent to a reader that has read %d", sent, got)
	}
	rest, err := io.ReadAll(b)
	if err != nil || !bytes.Equal(rest, data[got:]) {
		t.Errorf("the rest: %d bytes, %v", len(rest), err)
	}
}

// All pulls together keep to the bounds of memory and connections, also where a registry redirects each request to
// another name. Seen to fail without the limit in Acquire and tryAcquire.
func TestManyBlobsKeepToTheBounds(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: run without -short")
	}
	w := ranged(t, small)
	var others []string
	for i := range 4 {
		others = append(others, fmt.Sprintf("cdn%d.test:443", i))
	}
	var mu sync.Mutex
	now, peak, n := 0, 0, 0
	data := noise(1 << 20)
	registry := w.registry("registry.test:443", rt.WithRedirects(func(req *http.Request) string {
		mu.Lock()
		defer mu.Unlock()
		n++
		return "https://" + others[n%len(others)] + req.URL.Path
	}))
	var stores []*rt.Registry
	for _, name := range others {
		s := w.registry(name, rt.WithRedirects(func(*http.Request) string { return "" }))
		s.PutBlob(data)
		s.SetFaults(rt.Faults{BytesPerSecond: 2 << 20})
		stores = append(stores, s)
	}
	_ = registry
	w.configure(withCA)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	go func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
			sum := 0
			for _, s := range stores {
				sum += s.Blobs()
			}
			mu.Lock()
			now = sum
			peak = max(peak, now)
			mu.Unlock()
			if m := w.client.cfg.Pool.Mapped(); m > small.Memory {
				t.Errorf("the pool has %d bytes", m)
			}
		}
	}()
	for range 8 {
		wg.Go(func() {
			repo := w.repository(nil)
			b, err := repo.Blob(w.Context(), describe(data), nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer b.Close()
			if got, err := io.ReadAll(b); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
	wg.Wait()
	close(stop)
	w.idle()
	if peak > small.PerHost {
		t.Errorf("%d requests at a time, more than %d", peak, small.PerHost)
	}
	if peak < 3 {
		t.Errorf("only %d requests at a time", peak)
	}
}

// A place to which the registry redirects is asked for further ranges without the registry, until its URL has expired.
// It never gets credentials. Seen to fail without at in source, by the number of requests; without look, by an error;
// and with the request of the registry sent to the place, by the credentials.
func TestARedirectIsFollowedOnceUntilItExpires(t *testing.T) {
	w := ranged(t, small)
	data := noise(4 << 20)
	var mu sync.Mutex
	signature, lookups, served, refused := 0, 0, 0, 0
	store := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		mu.Lock()
		ok := req.URL.Query().Get("signature") == fmt.Sprint(signature)
		if ok {
			served++
			if served%10 == 0 {
				signature++ // from now on the URL is of no use
			}
		} else {
			refused++
		}
		for name := range req.Header {
			if name == "Authorization" || name == "X-Api-Key" {
				t.Errorf("the store got %s", name)
			}
		}
		mu.Unlock()
		if !ok {
			http.Error(rw, "expired", http.StatusForbidden)
			return
		}
		time.Sleep(2 * time.Millisecond)
		http.ServeContent(rw, req, "", time.Time{}, bytes.NewReader(data))
	}))
	defer store.Close()
	w.foreign("store.test:443", store)
	r := w.registry("registry.test:443", rt.WithTokenAuth("user", password, ""),
		rt.WithRealm("https://registry.test/token"),
		rt.WithRedirects(func(req *http.Request) string {
			if req.URL.Path == "/token" || req.Header.Get("Authorization") == "" {
				return ""
			}
			mu.Lock()
			defer mu.Unlock()
			lookups++
			return fmt.Sprintf("https://store.test/bytes?signature=%d", signature)
		}))
	r.PutBlob(data)
	w.configure("CA\nskip_verify = true\n[header]\nX-Api-Key = \"key-of-the-file\"\n")
	auth := kinds["token"].auth
	if err := w.blob(w.repository(&auth), data); err != nil {
		t.Fatal(err)
	}
	if lookups < 3 || lookups > served/10+2 || served < 30 {
		t.Errorf("the registry was asked %d times where the blob is, for %d ranges; %d were refused", lookups, served,
			refused)
	}
	if strings.Contains(w.logs.text.String(), "signature=") {
		t.Error("a log line has a signed URL")
	}
}

// A place that refuses every range ends the pull with an error, as one that refuses the blob.
func TestAPlaceThatRefusesIsAnError(t *testing.T) {
	w := ranged(t, small)
	store := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		http.Error(rw, "expired", http.StatusForbidden)
	}))
	defer store.Close()
	w.foreign("store.test:443", store)
	lookups := 0
	w.registry("registry.test:443", rt.WithRedirects(func(*http.Request) string {
		lookups++
		return "https://store.test/bytes?signature=secret"
	}))
	w.configure("CA\nskip_verify = true\n")
	err := w.blob(w.repository(nil), noise(1<<20))
	if !errdefs.IsPermissionDenied(err) || strings.Contains(err.Error(), "secret") || lookups > 5 {
		t.Errorf("error %v after %d requests", err, lookups)
	}
}

// Where a mirror fails in the middle, the next host goes on, with what was loaded ahead.
func TestTheNextMirrorGoesOnWithRanges(t *testing.T) {
	w := ranged(t, small)
	mirror := w.registry("mirror.test:443")
	r := w.registry("registry.test:443")
	w.configure(withCA + "[host.\"https://mirror.test\"]\nCA\n")
	data := noise(4 << 20)
	for _, reg := range []*rt.Registry{mirror, r} {
		reg.PutBlob(data)
		reg.SetFaults(rt.Faults{BytesPerSecond: 8 << 20})
	}
	b, err := w.repository(nil).Blob(w.Context(), describe(data), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	half := make([]byte, len(data)/2)
	if _, err := io.ReadFull(b, half); err != nil {
		t.Fatal(err)
	}
	mirror.SetFaults(rt.Faults{Status: 404})
	rest, err := io.ReadAll(b)
	if err != nil || !bytes.Equal(append(half, rest...), data) {
		t.Errorf("%d bytes, %v", len(half)+len(rest), err)
	}
	if len(b.Hosts()) != 2 {
		t.Errorf("bytes came from %v", b.Hosts())
	}
	_, of := mirror.Peaks()
	if _, on := r.Peaks(); of < 2 || on < 2 {
		t.Errorf("%d and %d requests at a time", of, on)
	}
}

// A reader that stops in the middle, as one does whose layer cannot be unpacked, leaves nothing either. Seen to crash
// without the wait in Stop: memory is written that is not there any more.
func TestABlobThatIsNotReadToItsEndLeavesNothing(t *testing.T) {
	w := ranged(t, small)
	r := w.registry("registry.test:443")
	w.configure(withCA)
	data := noise(8 << 20)
	r.PutBlob(data)
	r.SetFaults(rt.Faults{BytesPerSecond: 2 << 20})
	for range 5 {
		b, err := w.repository(nil).Blob(t.Context(), describe(data), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, b, 4*step+100); err != nil {
			t.Fatal(err)
		}
		b.Close()
		w.idle()
	}
	for end := time.Now().Add(5 * time.Second); r.Blobs() > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d requests are still there", r.Blobs())
		}
	}
}

// A pull that is given up ends its connections and gives its memory back at once, whatever these are doing.
func TestABlobThatIsGivenUpLeavesNothing(t *testing.T) {
	for _, f := range []rt.Faults{{BytesPerSecond: 2 << 20}, {StallAfter: step / 2, BytesPerSecond: 4 << 20},
		{AtOnce: 1, RetryAfter: "60", BytesPerSecond: 2 << 20}} {
		// Whatever a connection waits for, it waits for a minute.
		w := rangedWith(t, small, Retry{Attempts: 5, Backoff: 5 * time.Millisecond, MaxBackoff: time.Minute,
			Stall: time.Minute})
		r := w.registry("registry.test:443")
		w.configure(withCA)
		data := noise(8 << 20)
		r.PutBlob(data)
		r.SetFaults(f)
		ctx, cancel := context.WithCancel(t.Context())
		b, err := w.repository(nil).Blob(ctx, describe(data), nil)
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(300*time.Millisecond, cancel)
		if _, err := io.ReadAll(b); !errors.Is(err, context.Canceled) {
			t.Errorf("%+v: error %v", f, err)
		}
		began := time.Now()
		b.Close()
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("%+v: closing took %v", f, took)
		}
		w.idle()
		for end := time.Now().Add(5 * time.Second); r.Blobs() > 0; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%+v: %d requests are still there", f, r.Blobs())
			}
		}
	}
}
