package images

import (
	"errors"
	"fmt"

	"github.com/containerd/platforms"
)

var errEveryPlatform = errors.New("--all-platforms: the runtime keeps images of the node's own platform only. To " +
	"copy an image of all platforms between registries, use skopeo or crane")

// checkPlatform refuses images for other machines than this one.
func checkPlatform(text string) error {
	if text == "" {
		return nil
	}
	wanted, err := platforms.Parse(text)
	if err != nil {
		return fmt.Errorf("--platform %q: is no OS/ARCHITECTURE[/VARIANT]", text)
	}
	own := platforms.DefaultSpec()
	if wanted.OS == own.OS && wanted.Architecture == own.Architecture &&
		(wanted.Variant == "" || wanted.Variant == own.Variant) {
		return nil
	}
	return fmt.Errorf("--platform %q: this node runs %s, and its runtime keeps images of that platform only.\n"+
		"Others would need an emulator for their programs (binfmt_misc and qemu-user) and a store that keeps several "+
		"platforms of one name. To copy an image of another platform between registries, use skopeo or crane",
		text, platforms.Format(own))
}
