package migrate

import (
	"os"
	"slices"
	"strings"
)

// keysFlag is the flag of ctd-decoder, containerd's program for encrypted layers, that names the directory of keys.
const keysFlag = "--decryption-keys-path"

// crioKeys is where CRI-O looks for keys when no key says where.
var crioKeys = "/etc/crio/keys/"

// decryptionKeys has the node's keys for encrypted images stay in use, if the directory has any. It is false for one
// that has none.
func (p *Plan) decryptionKeys(from, dir string) bool {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		return false
	}
	p.set(from, "image.decryption_keys_path", dir)
	return true
}

// streamProcessors translates what of containerd's stream processors decrypts layers.
func (p *Plan) streamProcessors(path string, processors map[string]any) {
	for _, name := range keys(processors) {
		at, processor := dotted(path, name), table(processors[name])
		accepts := texts(processor["accepts"])
		if !slices.ContainsFunc(accepts, func(t string) bool { return strings.HasSuffix(t, "+encrypted") }) {
			p.left(at, "Berth has no stream processors: it reads layers packed by gzip and zstd, and encrypted ones")
			continue
		}
		args, translated := texts(processor["args"]), false
		for i, arg := range args {
			dir, given := strings.CutPrefix(arg, keysFlag+"=")
			if arg == keysFlag && i+1 < len(args) {
				dir, given = args[i+1], true
			}
			translated = translated || given && p.decryptionKeys(at, dir)
		}
		if !translated {
			p.note(at, Needless, "it names no directory with keys for encrypted images")
		}
		for _, variable := range texts(processor["env"]) {
			file, ok := strings.CutPrefix(variable, "OCICRYPT_KEYPROVIDER_CONFIG=")
			if _, err := os.Stat(file); ok && err == nil {
				p.left(at, "Berth asks no key providers (%s): keys of encrypted images are files", file)
			}
		}
	}
}
