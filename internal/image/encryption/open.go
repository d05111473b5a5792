package encryption

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/go-jose/go-jose/v4"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/image/source"
	"berth/internal/jail/wire"
)

// The annotations of encrypted layers. Their values are in base64.
const (
	prefix       = "org.opencontainers.image.enc."
	prefixOfKeys = prefix + "keys."
	ofJWE        = prefixOfKeys + "jwe" // several with commas between: recipients that were added later
	ofPublic     = prefix + "pubopts"   // JSON
)

// aes256 is the only cipher that ocicrypt has.
const aes256 = "AES_256_CTR_HMAC_SHA256"

// maxTries is how many times at most a key of the node is tried for one image. An operation with an RSA key takes a
// millisecond or more, and an annotation may have thousands of recipients.
const maxTries = 2000

func init() {
	jose.MaxRecipients = maxTries // which are counted before
}

// maxWrapped is how many bytes the key of a layer may have, encrypted for some hundred recipients.
const maxWrapped = 256 << 10

// The algorithms that ocicrypt accepts. It uses RSA-OAEP, and ECDH-ES with A256KW.
var (
	keyAlgorithms = []jose.KeyAlgorithm{
		jose.RSA_OAEP, jose.RSA_OAEP_256, jose.ECDH_ES_A128KW, jose.ECDH_ES_A192KW, jose.ECDH_ES_A256KW,
	}
	contentAlgorithms = []jose.ContentEncryption{
		jose.A128CBC_HS256, jose.A192CBC_HS384, jose.A256CBC_HS512, jose.A128GCM, jose.A192GCM, jose.A256GCM,
	}
)

// Keys are the private keys of a node.
type Keys []any

// Open opens the keys of the layers of an image: a secret for each layer that is encrypted, and nil for others.
//
// Errors: errdefs.ErrFailedPrecondition (no key of the node opens it), ErrInvalidArgument (annotations that nobody
// could read), ErrResourceExhausted (too many recipients).
func (k Keys) Open(ctx context.Context, layers []ocispec.Descriptor) ([]*Secret, error) {
	secrets, tries := make([]*Secret, len(layers)), 0
	for i, l := range layers {
		if !source.Encrypted(l) {
			continue
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		private, err := k.open(ctx, l.Annotations, &tries)
		if err == nil {
			secrets[i], err = secretOf(private, l.Annotations[ofPublic])
		}
		if err != nil {
			return nil, fmt.Errorf("layer %s is encrypted: %w", l.Digest, err)
		}
	}
	return secrets, nil
}

// open opens the key of one layer.
func (k Keys) open(ctx context.Context, annotations map[string]string, tries *int) ([]byte, error) {
	wrapped := annotations[ofJWE]
	if wrapped == "" {
		return nil, noJWE(annotations)
	}
	for text := range strings.SplitSeq(wrapped, ",") {
		data, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, fmt.Errorf("its annotation %s is no base64: %w: %w", ofJWE, err, errdefs.ErrInvalidArgument)
		}
		if len(data) > maxWrapped {
			return nil, fmt.Errorf("its annotation %s has a key of %d bytes, more than %d: %w", ofJWE, len(data), maxWrapped,
				errdefs.ErrResourceExhausted)
		}
		var form struct{ Recipients []struct{} } // only to count them
		_ = json.Unmarshal(data, &form)
		*tries += max(len(form.Recipients), 1) * len(k)
		if *tries > maxTries {
			return nil, fmt.Errorf("its image has more recipients than %d keys can be tried for: %w", len(k),
				errdefs.ErrResourceExhausted)
		}
		parse := jose.ParseEncryptedCompact
		if bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) { // as ocicrypt writes it
			parse = jose.ParseEncryptedJSON
		}
		message, err := parse(string(data), keyAlgorithms, contentAlgorithms)
		if err != nil {
			return nil, fmt.Errorf("its annotation %s does not parse: %w: %w", ofJWE, err, errdefs.ErrInvalidArgument)
		}
		for _, key := range k {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if _, _, private, err := message.DecryptMulti(key); err == nil {
				return private, nil
			}
		}
	}
	return nil, fmt.Errorf("none of the %d keys of the node in image.decryption_keys_path opens it: %w", len(k),
		errdefs.ErrFailedPrecondition)
}

// noJWE says for what the key of a layer was encrypted.
func noJWE(annotations map[string]string) error {
	var schemes []string
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		if scheme, ok := strings.CutPrefix(name, prefixOfKeys); ok && len(schemes) < 10 {
			schemes = append(schemes, wire.Printable(scheme, 100))
		}
	}
	if len(schemes) == 0 {
		return fmt.Errorf("no annotation has its key: %w", errdefs.ErrInvalidArgument)
	}
	return fmt.Errorf("its key is for %s, and Berth opens keys for jwe only: %w", strings.Join(schemes, ", "),
		errdefs.ErrFailedPrecondition)
}

// secretOf puts together what is private and what is public of a layer's encryption.
func secretOf(private []byte, public string) (*Secret, error) {
	var hidden struct {
		Key     []byte            `json:"symkey"`
		Options map[string][]byte `json:"cipheroptions"`
	}
	var open struct {
		Cipher  string            `json:"cipher"`
		HMAC    []byte            `json:"hmac"`
		Options map[string][]byte `json:"cipheroptions"`
	}
	if json.Unmarshal(private, &hidden) != nil { // its error may quote the key
		return nil, fmt.Errorf("its key does not parse: %w", errdefs.ErrInvalidArgument)
	}
	data, err := base64.StdEncoding.DecodeString(public)
	if err == nil {
		err = json.Unmarshal(data, &open)
	}
	if err != nil {
		return nil, fmt.Errorf("its annotation %s does not parse: %w: %w", ofPublic, err, errdefs.ErrInvalidArgument)
	}
	if open.Cipher != aes256 {
		return nil, fmt.Errorf("its cipher is %.100q, and not %s: %w", open.Cipher, aes256, errdefs.ErrInvalidArgument)
	}
	nonce, ok := open.Options["nonce"]
	if !ok {
		nonce = hidden.Options["nonce"]
	}
	s := &Secret{key: hidden.Key, nonce: nonce, hmac: open.HMAC}
	return s, s.check()
}
