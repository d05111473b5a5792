package registry

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Where a node has its certificate authorities, as package crypto/x509 looks for them: the first of these files, and
// all files in these directories. SSL_CERT_FILE and SSL_CERT_DIR name others.
var (
	rootFiles = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
		"/etc/ssl/ca-bundle.pem", "/etc/pki/tls/cacert.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
		"/etc/ssl/cert.pem"}
	rootDirs = []string{"/etc/ssl/certs", "/etc/pki/tls/certs"}
)

// roots are the node's certificate authorities. Package crypto/x509 reads them once in the life of a process: after a
// change of them, no pull from a registry with a certificate of a new authority worked until berthd was started again.
type roots struct {
	mu   sync.Mutex // guards the fields below
	at   string     // the files and directories, and when they were changed
	pem  []byte
	pool *x509.CertPool // is not written to once it is here
}

// current are the authorities as they are now: as a pool, and as they are in the files. Both are nil where there are
// none, as far as can be seen.
func (r *roots) current() (*x509.CertPool, []byte) {
	files, dirs := rootFiles, rootDirs
	if f := os.Getenv("SSL_CERT_FILE"); f != "" {
		files = []string{f}
	}
	if d := os.Getenv("SSL_CERT_DIR"); d != "" {
		dirs = strings.Split(d, ":")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if at := lastChanged(files, dirs); at != r.at || at == "" {
		r.at, r.pem, r.pool = at, readRoots(files, dirs), nil
		if pool := x509.NewCertPool(); pool.AppendCertsFromPEM(r.pem) {
			r.pool = pool
		}
	}
	return r.pool, r.pem
}

func lastChanged(files, dirs []string) string {
	var all strings.Builder
	for _, name := range append(files[:len(files):len(files)], dirs...) {
		if st, err := os.Stat(name); err == nil {
			fmt.Fprintln(&all, name, st.ModTime().UnixNano(), st.Size())
		}
	}
	return all.String()
}

func readRoots(files, dirs []string) []byte {
	var all bytes.Buffer
	for _, name := range files {
		if data, err := os.ReadFile(name); err == nil {
			all.Write(data)
			break
		}
	}
	for _, dir := range dirs {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			name := filepath.Join(dir, e.Name())
			if target, err := os.Readlink(name); err == nil && !strings.Contains(target, "/") {
				continue // another name of a file in the directory
			}
			if st, err := os.Stat(name); err != nil || !st.Mode().IsRegular() {
				continue
			}
			if data, err := os.ReadFile(name); err == nil {
				all.WriteByte('\n')
				all.Write(data)
			}
		}
	}
	return all.Bytes()
}
