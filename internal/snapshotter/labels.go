package snapshotter

import (
	"encoding/json"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxLabel is how long a label may be, its name and value together (containerd's pkg/labels).
const maxLabel = 4096

// Image is what a snapshotter is told of the image that is pulled.
type Image struct {
	Ref      string // its name in the registry
	Registry string // the host in that name
	Manifest digest.Digest
	Layers   []ocispec.Descriptor // base first
}

// own are annotations of a layer that are for snapshotters, such as the digest of the table of contents, by which
// stargz-snapshotter verifies what it reads. Those that say where to read from are left out: an image should not make
// the node send requests to any address.
func (m *Image) own(layer int) map[string]string {
	labels := map[string]string{}
	for key, value := range m.Layers[layer].Annotations {
		if strings.HasPrefix(key, labelPrefix) && !strings.HasPrefix(key, labelRemote) && len(key)+len(value) <= maxLabel {
			labels[key] = value
		}
	}
	return labels
}

// Identity is a digest of all that decides what the snapshotter reads for a layer, and from whom: its registry, its
// blob, what it claims to unpack to, and its annotations for snapshotters.
func (m *Image) Identity(layer int, diffID digest.Digest) digest.Digest {
	own, _ := json.Marshal(m.own(layer)) // a map of strings, whose keys it sorts
	return digest.FromString(strings.Join([]string{
		m.Registry, diffID.String(), m.Layers[layer].Digest.String(), string(own),
	}, "\n"))
}

// Labels are those of a layer, which becomes the snapshot ref: what containerd's CRI tells snapshotters.
func (m *Image) Labels(layer int, ref string) map[string]string {
	labels := m.own(layer)
	var above strings.Builder // this one, and as many of those above as there is room for
	for _, l := range m.Layers[layer:] {
		if len(labelLayers)+above.Len()+1+len(l.Digest) > maxLabel {
			break
		}
		if above.Len() > 0 {
			above.WriteByte(',')
		}
		above.WriteString(l.Digest.String())
	}
	labels[LabelRef] = ref
	labels[labelImage] = m.Ref
	labels[labelManifest] = m.Manifest.String()
	labels[labelLayer] = m.Layers[layer].Digest.String()
	labels[labelLayers] = above.String()
	return labels
}
