package encryption

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/go-jose/go-jose/v4"
)

const (
	// maxKeys is how many keys a node may have: each is tried on each recipient of a layer's key.
	maxKeys = 32
	maxFile = 64 << 10
)

// ReadKeys reads the private keys in a directory: RSA and elliptic curves, in PEM or DER (PKCS #8, PKCS #1, SEC 1), or
// as JSON Web Keys. Directories, and files whose names begin with a dot, are passed over. A file has to belong to root,
// and nobody else may be able to read it. The error is errdefs.ErrFailedPrecondition, and names each file that is no
// key.
func ReadKeys(dir string) (Keys, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("keys for encrypted images: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	var keys Keys
	var problems []error
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		data, err := read(path)
		if err == nil && data == nil {
			continue
		}
		var key any
		if err == nil {
			if key, err = parse(data); err != nil {
				err = fmt.Errorf("%s: %w", path, err)
			}
		}
		if err != nil {
			problems = append(problems, err)
			continue
		}
		keys = append(keys, key)
	}
	switch {
	case len(problems) > 0:
		err = errors.Join(problems...)
	case len(keys) > maxKeys:
		err = fmt.Errorf("%s has %d keys, more than %d", dir, len(keys), maxKeys)
	default:
		return keys, nil
	}
	return nil, fmt.Errorf("keys for encrypted images: %w: %w", err, errdefs.ErrFailedPrecondition)
}

// read reads the file of a key. It is nil for a directory.
func read(path string) ([]byte, error) {
	// A FIFO must not hold anybody up.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch mode := info.Mode(); {
	case mode.IsDir():
		return nil, nil
	case !mode.IsRegular():
		return nil, fmt.Errorf("%s is no regular file", path)
	case !ok || st.Uid != 0:
		return nil, fmt.Errorf("%s has to belong to root", path)
	case mode.Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s has the mode %#o: others than root may use it; it has to be 0600", path, mode.Perm())
	case info.Size() > maxFile:
		return nil, fmt.Errorf("%s has %d bytes, more than %d", path, info.Size(), maxFile)
	}
	return io.ReadAll(io.LimitReader(f, maxFile))
}

var errNoKey = errors.New("it is no private key in PEM, in DER or as a JSON Web Key; keys with a password are not read")

// parse reads a private key.
func parse(data []byte) (any, error) {
	if strings.HasPrefix(strings.TrimSpace(string(data)), "{") {
		key := &jose.JSONWebKey{}
		if err := key.UnmarshalJSON(data); err != nil || key.IsPublic() {
			return nil, errNoKey
		}
		return key, nil
	}
	// There may be parameters of a curve, or a certificate, before the key.
	for rest := data; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if strings.HasSuffix(block.Type, "PRIVATE KEY") {
			data = block.Bytes
			break
		}
	}
	if key, err := x509.ParsePKCS8PrivateKey(data); err == nil {
		return key, nil
	}
	if key, err := x509.ParsePKCS1PrivateKey(data); err == nil {
		return key, nil
	}
	if key, err := x509.ParseECPrivateKey(data); err == nil {
		return key, nil
	}
	return nil, errNoKey
}
