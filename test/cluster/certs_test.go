package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority is a certificate authority of the cluster, with its files in a directory.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
}

func newAuthority(dir, name string) (*authority, error) {
	a := &authority{dir: dir}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	var err error
	a.cert, a.key, err = a.write(name, template)
	return a, err
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name+".crt") }

func (a *authority) keyPath(name string) string { return filepath.Join(a.dir, name+".key") }

// issue writes a certificate for a client and server of the cluster, and its key.
func (a *authority) issue(name, user string, groups, hosts []string) error {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	_, _, err := a.write(name, template)
	return err
}

// write signs a certificate, by itself if there is no authority yet.
func (a *authority) write(name string, template *x509.Certificate) (*x509.Certificate, crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		return nil, nil, err
	}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(30*24*time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, crypto.Signer(key)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	block := func(path, kind string, bytes []byte) error {
		return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600)
	}
	if err := block(a.path(name), "CERTIFICATE", der); err != nil {
		return nil, nil, err
	}
	return cert, key, block(a.keyPath(name), "EC PRIVATE KEY", private)
}

// kubeconfig writes a configuration of a client whose certificate is issued on the way, and returns its path.
func (a *authority) kubeconfig(name, server, user string, groups ...string) (string, error) {
	if err := a.issue(name, user, groups, nil); err != nil {
		return "", err
	}
	data := map[string]string{}
	for key, path := range map[string]string{
		"ca": a.path("ca"), "cert": a.path(name), "key": a.keyPath(name),
	} {
		content, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		data[key] = base64.StdEncoding.EncodeToString(content)
	}
	text, err := json.MarshalIndent(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "cluster",
		"clusters": []any{map[string]any{"name": "cluster", "cluster": map[string]any{
			"server": server, "certificate-authority-data": data["ca"],
		}}},
		"users": []any{map[string]any{"name": user, "user": map[string]any{
			"client-certificate-data": data["cert"], "client-key-data": data["key"],
		}}},
		"contexts": []any{map[string]any{"name": "cluster", "context": map[string]any{"cluster": "cluster", "user": user}}},
	}, "", "  ")
	if err != nil {
		return "", err
	}
	path := filepath.Join(a.dir, name+".kubeconfig")
	return path, os.WriteFile(path, text, 0o600)
}
