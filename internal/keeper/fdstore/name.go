package fdstore

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"

	"berth/internal/keeper/protocol"
)

// The service manager hands all descriptors back with their names in one environment variable, LISTEN_FDNAMES, and no
// variable may be longer than 128 KiB (MAX_ARG_STRLEN, execve(2)): with a longer one the next keeper cannot be executed
// at all. So a name is short. It is a key made of the ID of a container or exec, and a letter for the role: with eight
// characters and a colon there is room for 14,561 descriptors, which FileDescriptorStoreMax of the unit stays below.
const (
	keyLength  = 7 // of 6 bits each
	nameLength = keyLength + 1
	// longPrefix begins the names that earlier versions gave: berth.ID.ROLE, which was enough for some 200 containers.
	longPrefix = "berth."
)

var letters = map[protocol.Role]string{
	protocol.RoleStdin: "i", protocol.RoleStdout: "o", protocol.RoleStderr: "e", protocol.RoleConsole: "c",
	protocol.RolePidfd: "p", protocol.RoleStdoutMemory: "m", protocol.RoleStdoutRelay: "r",
	protocol.RoleStderrMemory: "n", protocol.RoleStderrRelay: "s",
}

var roles = func() map[string]protocol.Role {
	m := map[string]protocol.Role{}
	for role, letter := range letters {
		m[letter] = role
	}
	return m
}()

// keyOf names a container or exec.
func keyOf(id string) string {
	sum := sha256.Sum256([]byte(id))
	return base64.RawURLEncoding.EncodeToString(sum[:])[:keyLength]
}

func nameOf(key string, r protocol.Role) string { return key + letters[r] }

// parseName is the key and the role of what the service manager hands back, by a name of this or of an earlier version.
func parseName(name string) (key string, role protocol.Role, ok bool) {
	if rest, long := strings.CutPrefix(name, longPrefix); long {
		i := strings.LastIndexByte(rest, '.')
		if i <= 0 {
			return "", "", false
		}
		return keyOf(rest[:i]), protocol.Role(rest[i+1:]), true
	}
	if len(name) != nameLength {
		return "", "", false
	}
	role, ok = roles[name[keyLength:]]
	return name[:keyLength], role, ok
}
