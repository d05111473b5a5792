package manifest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// NamedVolume is the name of the daemon's volume that stands for a PersistentVolumeClaim: the claim's name, with the
// namespace before it unless that is default. A namespace has no underscore, so that no two claims have one volume.
func NamedVolume(namespace, claim string) string {
	if namespace == metav1.NamespaceDefault {
		return claim
	}
	return namespace + "_" + claim
}

// claim reads a PersistentVolumeClaim. The daemon makes the volume when a container first mounts it, so that the
// document is only checked. Its size, class and access modes change nothing: docs/cli.md says so.
func (d *decoder) claim(data []byte) error {
	var source corev1.PersistentVolumeClaim
	if err := decodeStrict(data, &source); err != nil {
		return err
	}
	var c checks
	c.claim("spec", source.Name, &source.Spec)
	if len(c.errs) > 0 {
		return fmt.Errorf("PersistentVolumeClaim %s: %w", source.Name, c.errs[0])
	}
	return nil
}

// claim checks a claim; field is that of its specification.
func (c *checks) claim(field, name string, spec *corev1.PersistentVolumeClaimSpec) {
	c.claimName("metadata.name", name)
	if spec.VolumeMode != nil && *spec.VolumeMode != corev1.PersistentVolumeFilesystem {
		c.add(field+".volumeMode", "%q is not supported: the volume is a directory", *spec.VolumeMode)
	}
	if spec.DataSource != nil {
		c.add(field+".dataSource", "not supported: a new volume has the files of the image at its mount path")
	}
	if spec.DataSourceRef != nil {
		c.add(field+".dataSourceRef", "not supported: a new volume has the files of the image at its mount path")
	}
}

func (c *checks) claimName(field, name string) {
	const maxVolumeName = 128 - 64 // the namespace may stand before it
	c.syntax(field, name, validation.IsDNS1123Subdomain(name))
	if len(name) > maxVolumeName {
		c.add(field, "%q has more than %d characters", name, maxVolumeName)
	}
}
