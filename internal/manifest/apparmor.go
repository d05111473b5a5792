package manifest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
)

// setAppArmor gives containers the AppArmor profiles that annotations of their pod name, as an API server does for pods
// and a kubelet for its static ones. They come before the profile of the pod. Berth refuses what a kubelet would pass
// over: an annotation of a container that the pod does not have, and one that says something else than the container.
func setAppArmor(pod *corev1.Pod) error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(pod.Annotations)) {
		name, isProfile := strings.CutPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix)
		if !isProfile {
			continue
		}
		if err := setAppArmorOf(&pod.Spec, name, pod.Annotations[key]); err != nil {
			errs = append(errs, fmt.Errorf("metadata.annotations[%s]: %w", key, err))
		}
	}
	return errors.Join(errs...)
}

// setAppArmorOf gives a container the profile that is the value of an annotation. An empty value names none.
func setAppArmorOf(spec *corev1.PodSpec, container, value string) error {
	for c := range containers(spec) {
		if c.Name != container {
			continue
		}
		profile, err := annotatedAppArmor(value)
		if err != nil || profile == nil {
			return err
		}
		if own := security(c).AppArmorProfile; own != nil && !proto.Equal(appArmor(own), appArmor(profile)) {
			return fmt.Errorf("%q is not the container's appArmorProfile", value)
		}
		if c.SecurityContext == nil {
			c.SecurityContext = &corev1.SecurityContext{}
		}
		c.SecurityContext.AppArmorProfile = profile
		return nil
	}
	return fmt.Errorf("the pod has no container %q", container)
}

// annotatedAppArmor is the profile that an annotation names; nil: none.
func annotatedAppArmor(value string) (*corev1.AppArmorProfile, error) {
	local, isLocal := strings.CutPrefix(value, corev1.DeprecatedAppArmorBetaProfileNamePrefix)
	switch {
	case value == "":
		return nil, nil
	case value == corev1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}, nil
	case value == corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}, nil
	case isLocal && local != "" && strings.TrimSpace(local) == local:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &local}, nil
	}
	return nil, fmt.Errorf("%q is none of runtime/default, unconfined and localhost/NAME", value)
}
